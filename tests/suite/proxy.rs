//! A proxy between a client and the API server that breaks what it is told to break, and writes down every call.
//!
//! Each client of a test gets a proxy of its own, so that a fault hits one and not the others. It speaks plain HTTP on
//! loopback to the client and uses the tests' certificates towards the server.

// Named, since programs of other folders use these files too.
#[path = "proxy_answers.rs"]
mod answers;
#[path = "proxy_wire.rs"]
mod wire;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use leasehold::client::Locks;
use leasehold::clock::MonoInstant;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::answers::{Answer, Problem, filled, status, status_object, what, whole};
use self::wire::Wire;
use super::run_bench::{BUSY, Bench, until};
use super::server;

/// What is done to a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// None: for the calls before the one that is meant.
    Pass,
    /// It reaches the server only after that long, even if the client has given up.
    DelayRequest(Duration),
    /// It is applied at once and answered after that long.
    DelayAnswer(Duration),
    /// It does not reach the server; this code comes back.
    Refuse(u16),
    /// The same, with `Retry-After` in seconds.
    RefuseFor(u16, u32),
    /// The same as a policy does: 403, with this in its words.
    Forbid(&'static str),
    /// It is applied; then the connection breaks.
    CommitThenDrop,
    /// It is applied; then this code comes back.
    CommitThen(u16),
    /// It does not reach the server and is never answered.
    Hang,
    /// It does not reach the server; the object comes back as it is, as after a write that changed nothing.
    ChangeNothing,
    /// A list has nothing in it.
    ListNothing,
    /// A watch begins and never tells anything.
    WatchHang,
    /// A watch begins and ends at once: its resourceVersion is too old.
    WatchGone,
}

/// Which calls, how many of them, and what is done to them.
#[derive(Clone, Debug)]
pub struct Rule {
    verb: &'static str,
    resource: &'static str,
    /// The object; `None` for any.
    name: Option<&'static str>,
    fault: Fault,
    left: usize,
}

/// A call as it came by.
#[derive(Clone, Debug)]
pub struct Call {
    pub verb: &'static str,
    pub resource: String,
    /// The object's name; of a watch the one that its field selector picks.
    pub name: String,
    pub body: Value,
    pub at: MonoInstant,
    /// The number of the connection on which it came.
    pub connection: usize,
    /// What the server answered, if it has.
    pub code: Option<u16>,
}

impl Call {
    /// Whether it changes an object of a namespace.
    pub fn writes(&self) -> bool {
        let changes = ["create", "update", "patch", "delete"];
        changes.contains(&self.verb) && !self.resource.is_empty()
    }
}

#[derive(Default)]
struct State {
    rules: Mutex<Vec<Rule>>,
    calls: Mutex<Vec<Call>>,
    /// Connections with a smaller number are dead: what is sent is taken, nothing comes back.
    hole_below: AtomicUsize,
    connections: AtomicUsize,
    /// Whether the server is gone: connections break, new ones are closed at once.
    down: watch::Sender<bool>,
}

impl State {
    /// Writes a call down, and says where.
    fn note(
        &self,
        connection: usize,
        (verb, resource, name): (&'static str, &str, String),
        body: Value,
    ) -> usize {
        let mut calls = self.calls.lock().unwrap();
        calls.push(Call {
            verb,
            resource: resource.to_owned(),
            name,
            body,
            at: MonoInstant::now(),
            connection,
            code: None,
        });
        calls.len() - 1
    }

    /// What is to be done to such a call.
    fn fault_of(&self, verb: &str, resource: &str, name: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|rule| {
            rule.left > 0
                && (rule.verb == "*" || rule.verb == verb)
                && (rule.resource == "*" || rule.resource == resource)
                && rule.name.is_none_or(|only| only == name)
        })?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }
}

/// The proxy; it ends with the test's runtime.
pub struct Proxy {
    state: Arc<State>,
    endpoint: String,
    namespace: String,
    kubeconfig: PathBuf,
}

impl Proxy {
    /// A proxy in front of the server of `bench`.
    pub async fn new(bench: &Bench) -> Self {
        let mut config = bench.config().await;
        config.default_retry = false;
        let upstream = Client::try_from(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<State>::default();
        tokio::spawn(serve(listener, upstream, state.clone()));
        let kubeconfig = bench.file("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": endpoint}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        Self {
            state,
            endpoint,
            namespace: bench.namespace.clone(),
            kubeconfig,
        }
    }

    /// For a process.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// For the client library.
    pub fn locks(&self) -> Locks {
        Locks::new(Config::new(self.endpoint.parse().unwrap()), &self.namespace).unwrap()
    }

    /// From now on, `times` calls of this verb on this resource get this fault; `*` is any.
    pub fn fault(&self, verb: &'static str, resource: &'static str, times: usize, fault: Fault) {
        self.rule(Rule {
            verb,
            resource,
            name: None,
            fault,
            left: times,
        });
    }

    fn rule(&self, rule: Rule) {
        self.state.rules.lock().unwrap().push(rule);
    }

    /// Every call of this verb on this resource gets this fault.
    pub fn always(&self, verb: &'static str, resource: &'static str, fault: Fault) {
        self.fault(verb, resource, usize::MAX, fault);
    }

    /// The same, of one object only.
    pub fn always_of(
        &self,
        verb: &'static str,
        resource: &'static str,
        name: &'static str,
        fault: Fault,
    ) {
        self.rule(Rule {
            verb,
            resource,
            name: Some(name),
            fault,
            left: usize::MAX,
        });
    }

    /// No more faults.
    pub fn heal(&self) {
        self.state.rules.lock().unwrap().clear();
    }

    /// Connections that are open now are dead from now on, though nobody is told.
    pub fn swallow_open_connections(&self) {
        let count = self.state.connections.load(Ordering::SeqCst);
        self.state.hole_below.store(count, Ordering::SeqCst);
    }

    /// The server is gone: open connections break, and new ones are closed at once; each is noted as a `connect`.
    pub fn go_down(&self) {
        self.state.down.send_replace(true);
    }

    /// The server is back.
    pub fn come_up(&self) {
        self.state.down.send_replace(false);
    }

    /// What came by.
    pub fn calls(&self) -> Vec<Call> {
        self.state.calls.lock().unwrap().clone()
    }

    /// The PUTs of Leases that came by.
    pub fn puts(&self) -> Vec<Call> {
        let calls = self.calls().into_iter();
        calls
            .filter(|call| call.verb == "update" && call.resource == "leases")
            .collect()
    }

    /// Waits until so many more PUTs of Leases were answered by the server.
    pub async fn more_puts(&self, more: usize) {
        let answered = || self.puts().iter().filter(|put| put.code.is_some()).count();
        let before = answered();
        until(&format!("{more} more writes"), BUSY, async || {
            answered() >= before + more
        })
        .await;
    }

    /// Waits until a watch is open: the server has begun to answer it.
    pub async fn until_watching(&self) {
        until("a watch is open", BUSY, async || {
            let mut calls = self.calls().into_iter();
            calls.any(|call| call.verb == "watch" && call.code == Some(200))
        })
        .await;
    }

    /// I3: every write of a Lease carried the uid and the resourceVersion that were read; and there were no others.
    pub fn assert_guarded(&self) {
        self.assert_guarded_if_written();
        assert!(!self.puts().is_empty(), "nothing was written");
    }

    /// The same, if there were any at all.
    pub fn assert_guarded_if_written(&self) {
        for call in self.calls().iter().filter(|call| call.resource == "leases") {
            match call.verb {
                "update" => {
                    for field in ["uid", "resourceVersion"] {
                        let value = call.body["metadata"][field].as_str().unwrap_or_default();
                        assert!(!value.is_empty(), "no {field} in {call:?}");
                    }
                }
                verb => assert!(["get", "list", "watch"].contains(&verb), "{call:?}"),
            }
        }
    }
}

impl Bench {
    /// How to reach the server.
    pub async fn config(&self) -> Config {
        server::config_of(self.kubeconfig()).await
    }
}

async fn serve(listener: TcpListener, upstream: Client, state: Arc<State>) {
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("the proxy cannot accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let number = state.connections.fetch_add(1, Ordering::SeqCst);
        let mut down = state.down.subscribe();
        if *down.borrow_and_update() {
            state.note(number, ("connect", "", String::new()), Value::Null);
            continue;
        }
        let wire = Wire {
            stream,
            number,
            state: state.clone(),
        };
        let (upstream, state) = (upstream.clone(), state.clone());
        tokio::spawn(async move {
            let service =
                service_fn(move |request| answer(number, request, upstream.clone(), state.clone()));
            let served = http1::Builder::new().serve_connection(TokioIo::new(wire), service);
            // How a connection ends is what the tests are about.
            tokio::select! {
                _ = served => {}
                _ = down.wait_for(|down| *down) => {}
            }
        });
    }
}

async fn answer(
    connection: usize,
    request: Request<Incoming>,
    upstream: Client,
    state: Arc<State>,
) -> Result<Answer, io::Error> {
    let (mut parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let (verb, resource, name) = what(&parts.method, &parts.uri);
    let sent = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let index = state.note(connection, (verb, &resource, name.clone()), sent);
    let fault = state.fault_of(verb, &resource, &name);
    let body = if let Some(Fault::ChangeNothing) = fault {
        parts.method = Method::GET;
        Bytes::new()
    } else {
        body
    };
    let forward = async move {
        let mut passed = hyper::Request::builder()
            .method(parts.method)
            .uri(parts.uri);
        for name in ["accept", "content-type"] {
            if let Some(value) = parts.headers.get(name) {
                passed = passed.header(name, value);
            }
        }
        let passed = passed
            .body(kube::client::Body::from(body.to_vec()))
            .unwrap();
        let answer = upstream.send(passed).await.map_err(io::Error::other)?;
        state.calls.lock().unwrap()[index].code = Some(answer.status().as_u16());
        let (parts, body) = answer.into_parts();
        let mut made = Response::builder().status(parts.status);
        if let Some(kind) = parts.headers.get("content-type") {
            made = made.header("content-type", kind);
        }
        Ok::<Answer, io::Error>(
            made.body(UnsyncBoxBody::new(body.map_err(Into::into)))
                .unwrap(),
        )
    };
    match fault {
        None | Some(Fault::Pass | Fault::ChangeNothing) => forward.await,
        Some(Fault::DelayRequest(delay)) => {
            // In a task of its own: it goes on when the client has hung up.
            let later = tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                whole(forward.await?).await
            });
            later.await.map_err(io::Error::other)?
        }
        Some(Fault::DelayAnswer(delay)) => {
            let answer = whole(forward.await?).await?;
            tokio::time::sleep(delay).await;
            Ok(answer)
        }
        Some(Fault::Refuse(code)) => Ok(status(code, None)),
        Some(Fault::RefuseFor(code, seconds)) => Ok(status(code, Some(seconds))),
        Some(Fault::Forbid(words)) => {
            let words =
                format!("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: {words}");
            Ok(filled(
                StatusCode::FORBIDDEN,
                &status_object(403, "Forbidden", &words),
            ))
        }
        Some(Fault::CommitThenDrop) => {
            whole(forward.await?).await?;
            Err(io::ErrorKind::ConnectionReset.into())
        }
        Some(Fault::CommitThen(code)) => {
            whole(forward.await?).await?;
            Ok(status(code, None))
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::ListNothing) => {
            let nothing = json!({
                "kind": "List", "apiVersion": "v1",
                "metadata": {"resourceVersion": "1"}, "items": [],
            });
            Ok(filled(StatusCode::OK, &nothing))
        }
        Some(Fault::WatchHang) => {
            let never =
                StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Problem>>());
            Ok(Response::new(UnsyncBoxBody::new(never)))
        }
        Some(Fault::WatchGone) => {
            let gone = status_object(
                410,
                "Expired",
                "The resourceVersion for the provided watch is too old",
            );
            Ok(filled(
                StatusCode::OK,
                &json!({"type": "ERROR", "object": gone}),
            ))
        }
    }
}
