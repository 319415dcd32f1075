//! Events for people (`kubectl describe dlock`, `kubectl events`). An event that fails, fails nothing.
//!
//! Each is an object of its own, made directly: kube's `Recorder` keeps the first note when reason, action and object
//! repeat, so that the second grant would be told with the first one's token. In return a limit is kept here: what
//! does not fit is dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;

use super::apply::Writer;
use super::metrics::Metrics;
use crate::api::DistributedLock;
use crate::api::names::clip;
use crate::clock::Clock;

/// The most events that wait to be sent. At about 3 ms each they are at most a second late.
const QUEUED: usize = 256;
/// Events a second in the long run; a burst may be `QUEUED`. The API server keeps each for an hour.
const PAUSE: Duration = Duration::from_millis(20);
/// What the API server takes: 1024 characters a note.
const NOTE_CHARS: usize = 1000;

/// Something to tell about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Why, in one word.
    pub reason: &'static str,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// What was done or seen, in one word.
    pub action: &'static str,
    /// In words.
    pub note: String,
}

/// Takes events and never blocks.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    identity: String,
    clock: Arc<dyn Clock>,
}

impl Events {
    /// Starts the task that sends them.
    #[must_use]
    pub fn start(writer: Writer, identity: String, clock: Arc<dyn Clock>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUED);
        let metrics = writer.metrics.clone();
        tokio::spawn(send(writer, waiting));
        Self {
            queue,
            metrics,
            identity,
            clock,
        }
    }

    /// Tells something about a lock.
    pub fn tell(&self, lock: &DistributedLock, told: &Told) {
        let namespace = lock.namespace();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!(
                    "{}.{:016x}",
                    lock.name_any(),
                    rand::random::<u64>()
                )),
                namespace: namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(self.clock.wall())),
            regarding: Some(ObjectReference {
                api_version: Some(DistributedLock::api_version(&()).into_owned()),
                kind: Some(DistributedLock::kind(&()).into_owned()),
                name: lock.metadata.name.clone(),
                namespace,
                uid: lock.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            reason: Some(told.reason.to_owned()),
            action: Some(told.action.to_owned()),
            note: Some(clip(&told.note, NOTE_CHARS).to_owned()),
            type_: Some(if told.warning { "Warning" } else { "Normal" }.to_owned()),
            reporting_controller: Some("leasehold.dev/operator".to_owned()),
            reporting_instance: Some(clip(&self.identity, 128).to_owned()),
            ..Event::default()
        };
        if self.queue.try_send(event).is_err() {
            self.metrics
                .dropped
                .get_or_create(&[("kind", "event")])
                .inc();
        }
    }
}

async fn send(writer: Writer, mut waiting: mpsc::Receiver<Event>) {
    while let Some(event) = waiting.recv().await {
        let Ok(within) = writer.budget() else {
            continue;
        };
        let api: Api<Event> = Api::namespaced(
            writer.client.clone(),
            &event.namespace().unwrap_or_default(),
        );
        let made = tokio::time::timeout(within, api.create(&PostParams::default(), &event)).await;
        if !matches!(made, Ok(Ok(_))) {
            tracing::debug!(?made, "an event was not taken");
            writer
                .metrics
                .dropped
                .get_or_create(&[("kind", "event")])
                .inc();
        }
        tokio::time::sleep(PAUSE).await;
    }
}
