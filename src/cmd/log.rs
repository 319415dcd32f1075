//! What is logged: `RUST_LOG`, checked, since a misspelt level would name a module that does not exist, and silence all
//! the others.

use tracing_subscriber::filter::LevelFilter;

/// The crates whose modules may stand there without a level.
const CRATES: [&str; 5] = ["leasehold", "kube", "hyper", "tower", "rustls"];

/// `RUST_LOG`, if it says anything; or what is wrong with it.
pub(super) fn asked() -> Result<Option<String>, String> {
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    if asked.trim().is_empty() {
        return Ok(None);
    }
    check(&asked)?;
    Ok(Some(asked))
}

/// Levels, and modules with their level, separated by commas.
fn check(asked: &str) -> Result<(), String> {
    let parts = asked.split(',').map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let (module, level) = part
            .rsplit_once('=')
            .map_or((None, part), |(module, level)| {
                (Some(module.trim()), level.trim())
            });
        let is_level = !level.is_empty() && level.parse::<LevelFilter>().is_ok();
        let is_module = module.is_none() && CRATES.iter().any(|name| level.starts_with(name));
        if module == Some("") || !(is_level || is_module) {
            return Err(format!(
                "{part:?} is no log level: write error, warn, info, debug, trace or off, or MODULE=LEVEL"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_modules_pass_and_what_would_silence_everything_does_not() {
        for asked in [
            "info",
            "WARN",
            "off",
            "info,leasehold=debug",
            "info, kube_runtime=error,",
            "leasehold",
            "leasehold::controller=trace",
        ] {
            assert_eq!(check(asked), Ok(()), "{asked}");
        }
        for asked in [
            "loud",
            "info,loud",
            "leasehold=xx,,=",
            "=info",
            "leasehold=",
        ] {
            let words = check(asked).unwrap_err();
            assert!(words.contains("is no log level"), "{words}");
        }
    }
}
