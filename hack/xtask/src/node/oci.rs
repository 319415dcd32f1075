//! Small images as OCI archives, made without a builder: for what a node needs and no registry brings.

use std::env::consts;
use std::fmt::Write;

use ring::digest;
use serde_json::{Value, json};

/// The length of a block of a tar archive.
const BLOCK: usize = 512;
/// The room for a name in its header.
const NAME: usize = 100;

/// A file of an image.
pub enum Entry<'a> {
    /// A program: its path without the first slash, and its bytes.
    Program(&'a str, &'a [u8]),
    /// A symbolic link: its path without the first slash, and where it points.
    Link(&'a str, &'a str),
}

/// What an image is to be like.
pub struct Image<'a> {
    /// Its whole name, with the tag.
    pub name: &'a str,
    /// All there is in it.
    pub entries: &'a [Entry<'a>],
    /// What runs in its containers.
    pub entrypoint: &'a [&'a str],
    /// As whom: a number.
    pub user: &'a str,
}

impl Image<'_> {
    /// The archive: a tar of an OCI image layout.
    #[must_use]
    pub fn archive(&self) -> Vec<u8> {
        let mut layer = Tar::default();
        for entry in self.entries {
            match entry {
                Entry::Program(path, bytes) => layer.file(path, 0o755, bytes),
                Entry::Link(path, target) => layer.link(path, target),
            }
        }
        let layer = Blob::new("application/vnd.oci.image.layer.v1.tar", layer.end());
        let config = Blob::json(
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "architecture": architecture(),
                "os": "linux",
                "config": {
                    "Entrypoint": self.entrypoint,
                    "User": self.user,
                    "Env": ["PATH=/bin"],
                },
                "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
            }),
        );
        let manifest = Blob::json(
            "application/vnd.oci.image.manifest.v1+json",
            &json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
            }),
        );
        let mut root = manifest.descriptor();
        root["annotations"] = json!({ "io.containerd.image.name": self.name });
        let index = json!({ "schemaVersion": 2, "manifests": [root] });

        let mut tar = Tar::default();
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        tar.file("index.json", 0o644, index.to_string().as_bytes());
        for blob in [config, manifest, layer] {
            let path = format!("blobs/{}", blob.digest.replace(':', "/"));
            tar.file(&path, 0o644, &blob.bytes);
        }
        tar.end()
    }
}

/// This machine's, as images name it.
#[must_use]
pub fn architecture() -> &'static str {
    match consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

struct Blob {
    media_type: &'static str,
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        let hash = digest::digest(&digest::SHA256, &bytes);
        let hex = hash.as_ref().iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string can't fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        Self {
            media_type,
            digest: format!("sha256:{hex}"),
            bytes,
        }
    }

    fn json(media_type: &'static str, value: &Value) -> Self {
        Self::new(media_type, value.to_string().into_bytes())
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// A path in two, as the header has it: 100 bytes for the end, and 155 for what comes before a slash.
fn split(path: &str) -> (&str, &str) {
    let at = path.len().checked_sub(NAME + 1).map(|least| {
        let slash = path[least..].find('/');
        least + slash.expect("a name that a tar archive has room for")
    });
    at.map_or(("", path), |at| (&path[..at], &path[at + 1..]))
}

/// A tar archive in the POSIX form, with the same bytes for the same files.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        self.header(path, mode, bytes.len(), b'0', "");
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }

    fn link(&mut self, path: &str, target: &str) {
        self.header(path, 0o777, 0, b'2', target);
    }

    fn header(&mut self, path: &str, mode: u32, size: usize, kind: u8, target: &str) {
        let mut header = [0_u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        let (folder, name) = split(path);
        put(345, folder.as_bytes());
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{size:011o}").as_bytes());
        put(136, b"00000000000");
        // The sum is over the header with blanks in place of the sum.
        put(148, b"        ");
        put(156, &[kind]);
        put(157, target.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend_from_slice(&header);
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::process::Command;

    #[test]
    fn a_long_path_is_split_at_a_slash() {
        assert_eq!(split("bin/x"), ("", "bin/x"));
        let name = "y".repeat(96);
        assert_eq!(split(&format!("bin/{name}")), ("", &*format!("bin/{name}")));
        let path = format!("lib/python/{name}");
        assert_eq!(split(&path), ("lib/python", &*name));
        let path = format!("lib/{}", "z".repeat(100));
        assert_eq!(split(&path), ("lib", &path[4..]));
    }

    #[test]
    fn an_archive_is_what_tar_reads() {
        let image = Image {
            name: "localhost/x:1",
            entries: &[
                Entry::Program("bin/x", b"\x7fELF"),
                Entry::Link("bin/y", "x"),
            ],
            entrypoint: &["/bin/x"],
            user: "65532",
        };
        let path = std::env::temp_dir().join(format!("xtask-oci-{}.tar", std::process::id()));
        fs::write(&path, image.archive()).unwrap();
        let tar = |args: &[&str]| {
            let output = Command::new("tar")
                .args(args)
                .arg("-f")
                .arg(&path)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(tar(&["-t"]).lines().count(), 5);
        let index: Value = serde_json::from_str(&tar(&["-xO", "index.json"])).unwrap();
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "localhost/x:1"
        );
        let long = format!("{}/{}", "a".repeat(90), "b".repeat(90));
        let mut archive = Tar::default();
        archive.file(&long, 0o644, b"x");
        fs::write(&path, archive.end()).unwrap();
        assert_eq!(tar(&["-t"]).trim(), long);
        fs::remove_file(path).unwrap();
    }
}
