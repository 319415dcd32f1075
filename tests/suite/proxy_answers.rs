//! The answers that the proxy makes up, and what a call is about.

use std::io;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};

pub type Problem = Box<dyn std::error::Error + Send + Sync>;
pub type Answer = Response<UnsyncBoxBody<Bytes, Problem>>;

/// Takes the whole answer, so that the server has done all of its work.
pub async fn whole(answer: Answer) -> Result<Answer, io::Error> {
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let body = Full::new(body).map_err(|never| match never {});
    Ok(Response::from_parts(parts, UnsyncBoxBody::new(body)))
}

pub fn filled(code: StatusCode, body: &Value) -> Answer {
    let text = Full::new(Bytes::from(format!("{body}\n"))).map_err(|never| match never {});
    let made = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    made.body(UnsyncBoxBody::new(text)).unwrap()
}

pub fn status(code: u16, retry_after: Option<u32>) -> Answer {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let object = status_object(code, reason, "the test says so");
    let mut answer = filled(StatusCode::from_u16(code).unwrap(), &object);
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert("retry-after", seconds.into());
    }
    answer
}

pub fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

/// Verb, resource and name of a call, as RBAC names them.
pub fn what(method: &Method, uri: &hyper::Uri) -> (&'static str, String, String) {
    let mut path = uri
        .path()
        .trim_matches('/')
        .split('/')
        .skip_while(|part| *part != "namespaces");
    let mut next = || path.next().unwrap_or_default().to_owned();
    let (_, _, resource, name, _) = (next(), next(), next(), next(), next());
    let query = uri.query().unwrap_or_default();
    let watches = query.contains("watch=true");
    let selected = query
        .split('&')
        .find_map(|part| part.strip_prefix("fieldSelector=metadata.name%3D"));
    let verb = match *method {
        Method::GET if watches => "watch",
        Method::GET if name.is_empty() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    };
    let name = selected.map_or(name, str::to_owned);
    (verb, resource, name)
}
