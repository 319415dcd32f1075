//! The watches: what comes from them goes into the index, in every replica, leader or not.
//!
//! Each watch is short (`WATCH_SECONDS`), since a dead one is noticed only when it ends, and begins again with a pause
//! after an error. Nothing is right only because a watch delivered: the leader reads again on a slow beat, and new lists
//! are asked for when a read shows that revisions went back (a restore of etcd).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{DeserializeGuard, NamespaceResourceScope, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource, ResourceExt};

use super::Shared;
use super::index::{Index, Key, Kind, Source, Watch};
use crate::api::names;
use crate::api::{DistributedLock, LockClaim};
use crate::client::calls::asked_of;
use crate::lease::store::{TooBusy, chain};
use crate::lease::{FoundLease, lease_resource};

/// How long one watch call lasts. A silent death is noticed 5 s after that.
const WATCH_SECONDS: u32 = 25;

/// The longest pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A watch without an error for so long works: an error repeats itself within the time that a call may hang.
const QUIET: Duration = Duration::from_secs(75);

/// How often it is looked whether revisions went back.
const REVISION_EVERY: Duration = Duration::from_secs(10);

/// The watches that `namespaces` need; none means all namespaces.
#[must_use]
pub fn watches(namespaces: &[String]) -> Vec<Watch> {
    let mut places: Vec<_> = namespaces.iter().cloned().map(Some).collect();
    places.sort();
    places.dedup();
    if places.is_empty() {
        places.push(None);
    }
    let kinds = [
        Kind::Locks,
        Kind::Claims,
        Kind::Leases,
        Kind::SharedLeases,
        Kind::Pods,
    ];
    places
        .into_iter()
        .flat_map(|namespace| {
            kinds.map(|kind| Watch {
                kind,
                namespace: namespace.clone(),
            })
        })
        .collect()
}

/// Looks for ever whether revisions went back. A slow beat alone would notice that late, or with nothing but free locks for
/// minutes, while new locks and claims are not seen at all. It costs one small call. Locks and claims are kept in one etcd;
/// Leases and Pods may be kept in others, with revisions of their own.
pub async fn look_at_revisions(shared: Arc<Shared>, client: Client, watch: Watch) {
    let api = api::<DistributedLock>(&client, &watch);
    loop {
        tokio::time::sleep(REVISION_EVERY.mul_f64(0.9 + rand::random::<f64>() * 0.2)).await;
        // What was seen before the question is not newer than the answer.
        let seen = shared.revision.load(Ordering::SeqCst);
        let Some(now) = revision_now(&api).await else {
            continue;
        };
        if now >= seen {
            // A list's revision is that of its etcd, though no object of ours has changed.
            shared.revision.fetch_max(now, Ordering::SeqCst);
            continue;
        }
        tracing::warn!(
            seen,
            now,
            "revisions went back (a restore of etcd?), lists everything again"
        );
        shared.revision.store(now, Ordering::SeqCst);
        shared.revisions_went_back();
    }
}

/// As new as the server is, since the list asks for no revision.
async fn revision_now(api: &Api<DistributedLock>) -> Option<u64> {
    let one = ListParams::default().limit(1);
    let listed = tokio::time::timeout(REVISION_EVERY, api.list_metadata(&one)).await;
    let revision = listed.ok()?.ok()?.metadata.resource_version?;
    revision.parse().ok()
}

/// Follows one watch for ever.
pub async fn observe(shared: Arc<Shared>, client: Client, watch: Watch) {
    loop {
        // A new stream begins with a list.
        tokio::select! {
            () = follow_kind(&shared, &client, &watch) => {}
            () = shared.resync.notified() => {}
        }
    }
}

async fn follow_kind(shared: &Shared, client: &Client, watch: &Watch) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    match watch.kind {
        Kind::Locks => {
            let api = api::<DeserializeGuard<DistributedLock>>(client, watch);
            follow(shared, watch, watcher(api, config), lock_event).await;
        }
        Kind::Claims => {
            let api = api::<DeserializeGuard<LockClaim>>(client, watch);
            follow(shared, watch, watcher(api, config), claim_event).await;
        }
        Kind::Leases => {
            let config = config.labels(names::LABEL_LOCK);
            let events = watcher(leases(client, watch), config);
            follow(shared, watch, events, lease_event).await;
        }
        Kind::SharedLeases => {
            let config = config.labels(names::LABEL_SHARED_WITH);
            let events = watcher(leases(client, watch), config);
            follow(shared, watch, events, lease_event).await;
        }
        Kind::Pods => {
            let api = api::<PartialObjectMeta<Pod>>(client, watch);
            follow(shared, watch, watcher(api, config), pod_event).await;
        }
    }
}

fn api<K>(client: &Client, watch: &Watch) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match &watch.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn leases(client: &Client, watch: &Watch) -> Api<DynamicObject> {
    match &watch.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &lease_resource()),
        None => Api::all_with(client.clone(), &lease_resource()),
    }
}

/// What an event says about one object.
enum Seen<K> {
    Listed(K),
    Changed(K),
    Gone(K),
}

async fn follow<K: Resource + Send>(
    shared: &Shared,
    watch: &Watch,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    handle: impl Fn(&Shared, &mut Index, &Watch, Seen<K>) -> Vec<Key>,
) {
    let what = health_name(watch);
    let mut events = events.boxed();
    let mut failures = 0_u32;
    loop {
        // A watch that goes on after an error does not say so, and a quiet one tells nothing else.
        let quiet = if failures > 0 { QUIET } else { Duration::MAX };
        let event = match tokio::time::timeout(quiet, events.try_next()).await {
            Err(_) => {
                failures = 0;
                shared.health.report(&what, None);
                continue;
            }
            Ok(Ok(Some(event))) => event,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => {
                failures = failures.saturating_add(1);
                let resource = watch.kind.as_str();
                shared
                    .metrics
                    .watch_errors
                    .get_or_create(&[("resource", resource)])
                    .inc();
                // One alone is usual: the server restarts, or a connection ends.
                if failures > 1 {
                    shared.health.report(&what, Some(words(watch, &error)));
                }
                tokio::time::sleep(pause(failures, &error)).await;
                continue;
            }
        };
        if matches!(watch.kind, Kind::Locks | Kind::Claims)
            && let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) = &event
        {
            let revision = object.meta().resource_version.as_ref();
            let revision = revision.and_then(|revision| revision.parse().ok());
            shared
                .revision
                .fetch_max(revision.unwrap_or(0), Ordering::SeqCst);
        }
        let mut synced = false;
        let concerned = {
            let mut index = shared.index();
            match event {
                Event::Init => {
                    index.list_begins(watch);
                    vec![]
                }
                Event::InitApply(object) => handle(shared, &mut index, watch, Seen::Listed(object)),
                Event::InitDone => {
                    synced = true;
                    index.list_ends(watch, shared.now(), shared.wall())
                }
                Event::Apply(object) => {
                    synced = true;
                    handle(shared, &mut index, watch, Seen::Changed(object))
                }
                Event::Delete(object) => handle(shared, &mut index, watch, Seen::Gone(object)),
            }
        };
        if synced {
            failures = 0;
            shared.health.report(&what, None);
        }
        for key in concerned {
            shared.queue.add(key);
        }
    }
}

fn place(watch: &Watch) -> String {
    match &watch.namespace {
        Some(namespace) => format!(" in namespace {namespace:?}"),
        None => " in all namespaces".to_owned(),
    }
}

/// The name under which the health of a watch is reported.
#[must_use]
pub fn health_name(watch: &Watch) -> String {
    format!("watch {}{}", watch.kind.as_str(), place(watch))
}

/// Before the watch is begun again: longer after each failure. The back-off of kube-runtime begins anew with each list
/// that is begun, so it stays at its shortest. Nobody gives a permission that is missing from one moment to the next.
fn pause(failures: u32, error: &watcher::Error) -> Duration {
    let most = if forbidden(error).is_some() {
        LONGEST_PAUSE
    } else {
        Duration::from_secs(2)
    };
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(10));
    let pause = Duration::from_millis(800).saturating_mul(doubled);
    let pause = pause.min(most).mul_f64(0.5 + rand::random::<f64>() * 0.5);
    pause.max(asked_of(asked(error)))
}

/// For how long a server that is too busy asks not to be asked again.
fn asked(error: &watcher::Error) -> Duration {
    let (watcher::Error::InitialListFailed(error)
    | watcher::Error::WatchStartFailed(error)
    | watcher::Error::WatchFailed(error)) = error
    else {
        return Duration::ZERO;
    };
    TooBusy::of(error).map_or(Duration::ZERO, |busy| busy.after)
}

fn words(watch: &Watch, error: &watcher::Error) -> String {
    if let Some((verb, words)) = forbidden(error) {
        let resource = watch.kind.resource();
        return format!("not allowed to {verb} {resource}{}: {words}", place(watch));
    }
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404 => {
            format!("the server does not serve it: {}", names::HOW_TO_INSTALL)
        }
        other => chain(other),
    }
}

/// The verb that RBAC forbids, and the server's words.
fn forbidden(error: &watcher::Error) -> Option<(&'static str, &str)> {
    let (verb, status) = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => ("list", status),
        watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => ("watch", status),
        _ => return None,
    };
    matches!(status.code, 401 | 403).then_some((verb, status.message.as_str()))
}

fn lock_event(
    shared: &Shared,
    index: &mut Index,
    watch: &Watch,
    seen: Seen<DeserializeGuard<DistributedLock>>,
) -> Vec<Key> {
    match told(shared, index, watch, seen) {
        Told::Gone(key) => index.lock_gone(&key),
        Told::There(lock, source) => index.lock_seen(lock, source, shared.now()),
        Told::Damaged => vec![],
    }
}

fn claim_event(
    shared: &Shared,
    index: &mut Index,
    watch: &Watch,
    seen: Seen<DeserializeGuard<LockClaim>>,
) -> Vec<Key> {
    match told(shared, index, watch, seen) {
        Told::Gone(key) => index.claim_gone(&key),
        Told::There(claim, source) => index.claim_seen(claim, source),
        Told::Damaged => vec![],
    }
}

/// What a watch told of a lock or a claim.
enum Told<K> {
    Gone(Key),
    There(K, Source),
    /// It is there, and can't be decoded.
    Damaged,
}

/// The same, once it is noted that the watch shows it, or shows it no more.
fn told<K: Resource<DynamicType = ()>>(
    shared: &Shared,
    index: &mut Index,
    watch: &Watch,
    seen: Seen<DeserializeGuard<K>>,
) -> Told<K> {
    let (object, source) = match seen {
        Seen::Gone(object) => {
            let key = Key::of(&object);
            index.leaves(watch, &key);
            return Told::Gone(key);
        }
        Seen::Listed(object) => (object, Source::List),
        Seen::Changed(object) => (object, Source::Event),
    };
    index.enters(watch, &Key::of(&object), source == Source::List);
    decoded(shared, watch, object).map_or(Told::Damaged, |object| Told::There(object, source))
}

fn lease_event(
    shared: &Shared,
    index: &mut Index,
    watch: &Watch,
    seen: Seen<DynamicObject>,
) -> Vec<Key> {
    let (now, wall) = (shared.now(), shared.wall());
    let listed = matches!(seen, Seen::Listed(_));
    match seen {
        Seen::Gone(object) => {
            let key = Key::of(&object);
            index.leaves(watch, &key);
            FoundLease::read(object).map_or_else(Vec::new, |found| {
                let (uid, revision) = (found.record.uid, found.record.resource_version);
                index.lease_gone(&key, &uid, revision, now, wall)
            })
        }
        Seen::Listed(object) | Seen::Changed(object) if object.uid().is_none() => vec![],
        Seen::Listed(object) | Seen::Changed(object) => {
            let key = Key::of(&object);
            let trust = index.enters(watch, &key, listed);
            index.lease_seen(&key, FoundLease::read(object), trust, now, wall)
        }
    }
}

fn pod_event(
    _: &Shared,
    index: &mut Index,
    watch: &Watch,
    seen: Seen<PartialObjectMeta<Pod>>,
) -> Vec<Key> {
    let named = |pod: PartialObjectMeta<Pod>| (Key::of(&pod), pod.uid().unwrap_or_default());
    let concerned = match seen {
        Seen::Listed(pod) => {
            let (key, uid) = named(pod);
            index.pods.listed(watch, key, uid);
            vec![]
        }
        Seen::Changed(pod) => {
            let (key, uid) = named(pod);
            index.pods.changed(watch, &key, &uid)
        }
        Seen::Gone(pod) => {
            let (key, uid) = named(pod);
            index.pods.gone(watch, &key, &uid)
        }
    };
    index.locks_of(&concerned)
}

/// The object, or a report that it can't be decoded: one damaged object stops nothing.
fn decoded<K>(shared: &Shared, watch: &Watch, object: DeserializeGuard<K>) -> Option<K> {
    match object.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            let resource = watch.kind.as_str();
            shared
                .metrics
                .undecodable
                .get_or_create(&[("resource", resource)])
                .inc();
            tracing::warn!(
                resource,
                namespace = invalid.metadata.namespace,
                name = invalid.metadata.name,
                error = invalid.error,
                "passes over an object that cannot be decoded"
            );
            None
        }
    }
}
