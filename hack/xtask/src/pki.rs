//! Certificates and keys of a cluster's own, made anew for each.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate authority that lives as long as the making of one cluster.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, as PEM.
pub struct Pair {
    cert: String,
    key: String,
}

/// Who a certificate is for.
pub enum Subject<'a> {
    /// A server under these names and addresses, which also calls its peers.
    Server(&'a [&'a str]),
    /// A client: its user name and, if any, its group.
    Client(&'a str, Option<&'a str>),
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            pem,
            issuer: Issuer::new(params, key),
        })
    }

    /// The authority's certificate.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate that this authority vouches for.
    pub fn issue(&self, subject: &Subject<'_>) -> Result<Pair> {
        let mut params = match subject {
            Subject::Server(names) => {
                let mut params = CertificateParams::new(
                    names
                        .iter()
                        .map(|name| (*name).to_owned())
                        .collect::<Vec<_>>(),
                )?;
                params.distinguished_name = common_name(names.first().copied().unwrap_or("server"));
                params.extended_key_usages = vec![
                    ExtendedKeyUsagePurpose::ServerAuth,
                    ExtendedKeyUsagePurpose::ClientAuth,
                ];
                params
            }
            Subject::Client(user, group) => {
                let mut params = CertificateParams::default();
                params.distinguished_name = common_name(user);
                if let Some(group) = group {
                    params
                        .distinguished_name
                        .push(DnType::OrganizationName, *group);
                }
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                params
            }
        };
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair {
            cert,
            key: key.serialize_pem(),
        })
    }
}

impl Pair {
    /// Writes `NAME.crt` and `NAME.key`.
    pub fn write(&self, dir: &Path, name: &str) -> Result<()> {
        write_private(&dir.join(format!("{name}.crt")), &self.cert)?;
        write_private(&dir.join(format!("{name}.key")), &self.key)?;
        Ok(())
    }
}

/// Writes the key with which service account tokens are signed, `NAME.key`, and the one they are checked with,
/// `NAME.pub`.
pub fn write_signing_key(dir: &Path, name: &str) -> Result<()> {
    let key = KeyPair::generate()?;
    write_private(&dir.join(format!("{name}.key")), &key.serialize_pem())?;
    write_private(&dir.join(format!("{name}.pub")), &key.public_key_pem())?;
    Ok(())
}

/// Writes a kubeconfig that holds all it needs, so that it can be copied.
pub fn write_kubeconfig(
    path: &Path,
    endpoint: &str,
    cluster: &str,
    ca: &str,
    user: &str,
    pair: &Pair,
) -> Result<PathBuf> {
    let [ca, cert, key] = [ca, &pair.cert, &pair.key].map(|pem| BASE64_STANDARD.encode(pem));
    let text = format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: {endpoint}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    client-certificate-data: {cert}
    client-key-data: {key}
contexts:
- name: {cluster}
  context:
    cluster: {cluster}
    user: {user}
current-context: {cluster}
"
    );
    write_private(path, &text)?;
    Ok(path.to_path_buf())
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

fn common_name(name: &str) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    dn.push(DnType::CommonName, name);
    dn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_clients_get_certificates_of_their_own() {
        let authority = Authority::new("test").unwrap();
        let server = authority
            .issue(&Subject::Server(&["localhost", "127.0.0.1"]))
            .unwrap();
        let client = authority
            .issue(&Subject::Client("admin", Some("system:masters")))
            .unwrap();
        assert!(server.cert.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(server.key.starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_ne!(server.cert, client.cert);
        assert_ne!(server.key, client.key);
    }
}
