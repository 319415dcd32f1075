//! Where built programs and the folders of running servers are kept.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The cache folder, made if need be: `LEASEHOLD_CACHE`, else `leasehold` in `XDG_CACHE_HOME` or `~/.cache`.
pub fn root() -> Result<PathBuf> {
    let path = choose(|name| env::var(name).ok().filter(|value| !value.is_empty()))?;
    fs::create_dir_all(&path)
        .with_context(|| format!("can't make the cache folder {}", path.display()))?;
    Ok(path)
}

fn choose(var: impl Fn(&str) -> Option<String>) -> Result<PathBuf> {
    let path = if let Some(own) = var("LEASEHOLD_CACHE") {
        PathBuf::from(own)
    } else if let Some(xdg) = var("XDG_CACHE_HOME") {
        PathBuf::from(xdg).join("leasehold")
    } else if let Some(home) = var("HOME") {
        PathBuf::from(home).join(".cache/leasehold")
    } else {
        bail!("no place for the cache: set LEASEHOLD_CACHE to an absolute path");
    };
    if !path.is_absolute() {
        bail!(
            "the cache folder must be an absolute path, and {} is not",
            path.display()
        );
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &'static [(&str, &str)]) -> Result<PathBuf> {
        choose(|name| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_own_variable_comes_first_then_xdg_then_home() {
        let all = with(&[
            ("LEASEHOLD_CACHE", "/a"),
            ("XDG_CACHE_HOME", "/b"),
            ("HOME", "/c"),
        ]);
        assert_eq!(all.unwrap(), PathBuf::from("/a"));
        assert_eq!(
            with(&[("XDG_CACHE_HOME", "/b"), ("HOME", "/c")]).unwrap(),
            PathBuf::from("/b/leasehold")
        );
        assert_eq!(
            with(&[("HOME", "/c")]).unwrap(),
            PathBuf::from("/c/.cache/leasehold")
        );
    }

    #[test]
    fn no_place_and_relative_places_are_refused() {
        assert!(
            with(&[])
                .unwrap_err()
                .to_string()
                .contains("LEASEHOLD_CACHE")
        );
        assert!(with(&[("LEASEHOLD_CACHE", "here")]).is_err());
    }
}
