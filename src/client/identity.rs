//! Who a claimant is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube::config::AuthInfo;
use serde_json::{Value, json};

use crate::engine::PodRef;

/// Where Kubernetes mounts a Pod's token.
const TOKEN_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The Pod that this process runs in, as its own token tells it; `None` outside a Pod.
#[must_use]
pub fn own_pod() -> Option<PodRef> {
    own_pod_and_namespace().map(|(pod, _)| pod)
}

/// The same, and the namespace that it is in.
#[must_use]
pub fn own_pod_and_namespace() -> Option<(PodRef, String)> {
    pod_of_token(&std::fs::read_to_string(TOKEN_FILE).ok()?)
}

/// The same, if `config` uses that Pod's own token. To the server a process with other credentials is not that Pod: its
/// grants and claims name none.
#[must_use]
pub fn own_pod_of(config: &kube::Config) -> Option<(PodRef, String)> {
    let token = token_of(&config.auth_info)?;
    own_pod_and_namespace().filter(|own| pod_of_token(&token).as_ref() == Some(own))
}

/// The bearer token by which the server knows who calls; `None` where it goes by something else.
fn token_of(auth: &AuthInfo) -> Option<String> {
    // A certificate counts before a token does.
    let goes_by_another = auth.client_certificate.is_some()
        || auth.client_certificate_data.is_some()
        || auth.username.is_some()
        || auth.auth_provider.is_some()
        || auth.impersonate.is_some();
    if goes_by_another {
        return None;
    }
    if auth.token.is_some() {
        // The type tells it in this way only.
        let text = serde_json::to_value(auth).ok()?;
        return text.get("token")?.as_str().map(str::to_owned);
    }
    std::fs::read_to_string(auth.token_file.as_ref()?).ok()
}

/// The Pod to which a service account token is bound. The signature is the server's to check: a wrong Pod here only
/// misleads people, or is refused by policy.
fn pod_of_token(token: &str) -> Option<(PodRef, String)> {
    let payload = token.trim().split('.').nth(1)?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    let bound = claims.get("kubernetes.io")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pod = bound.get("pod")?;
    let pod = PodRef {
        name: text(pod.get("name")?)?,
        uid: text(pod.get("uid")?)?,
    };
    Some((pod, text(bound.get("namespace")?)?))
}

/// The name of this host.
#[must_use]
pub fn host_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

/// A claimant's name as identities, status and claims take it: other characters become `-`.
#[must_use]
pub fn claimant_name(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:@".contains(c);
    let name: String = name
        .chars()
        .map(|c| if allowed(c) { c } else { '-' })
        .take(253)
        .collect();
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() {
        "claimant".to_owned()
    } else {
        name.to_owned()
    }
}

/// `<claimant>/<uid>`: each grant has an identity of its own, so that a restarted container with the same name is
/// another claimant.
#[must_use]
pub fn identity(claimant: &str, uid: &str) -> String {
    format!("{claimant}/{uid}")
}

/// A fresh random uid.
#[must_use]
pub fn random_uid() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// The annotation `leasehold.dev/holder`: for people only.
#[must_use]
pub fn holder_note() -> String {
    let mut note = json!({"host": host_name(), "pid": std::process::id()});
    if let (Ok(node), Some(note)) = (std::env::var("NODE_NAME"), note.as_object_mut()) {
        note.insert("node".to_owned(), json!(node));
    }
    note.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_token_tells_its_pod() {
        let payload = json!({"kubernetes.io": {"namespace": "team-a", "pod": {"name": "pod-3", "uid": "u-3"}}});
        let token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(payload.to_string()));
        assert_eq!(
            pod_of_token(&token),
            Some((
                PodRef {
                    name: "pod-3".into(),
                    uid: "u-3".into()
                },
                "team-a".into()
            ))
        );
        for other in ["", "a.b.c", "e30.e30.sig"] {
            assert_eq!(pod_of_token(other), None, "{other}");
        }
    }

    #[test]
    fn the_token_counts_unless_the_server_goes_by_something_else() {
        let auth = |value: Value| serde_json::from_value::<AuthInfo>(value).unwrap();
        assert_eq!(token_of(&AuthInfo::default()), None);
        let inline = json!({"token": "t", "tokenFile": "/nowhere"});
        assert_eq!(token_of(&auth(inline.clone())).as_deref(), Some("t"));
        for (field, value) in [
            ("client-certificate", "f"),
            ("client-certificate-data", "c"),
            ("username", "u"),
            ("as", "other"),
        ] {
            let mut other = inline.clone();
            other[field] = json!(value);
            assert_eq!(token_of(&auth(other)), None, "{field}");
        }
    }

    #[test]
    fn a_claimants_name_fits_what_the_api_takes() {
        for (name, fits) in [
            ("pod-3", "pod-3"),
            ("a b/c;d", "a-b-c-d"),
            ("--x--", "x"),
            ("ä", "claimant"),
            ("", "claimant"),
        ] {
            assert_eq!(claimant_name(name), fits);
        }
    }
}
