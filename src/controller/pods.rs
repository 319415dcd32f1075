//! Pods, as far as claims name them (as the owner of a claim, or as what a Pod hold lasts with), and those that
//! Heartbeat holders run in.
//!
//! A watch of their metadata alone tells which are there: namespace, name and uid are kept, nothing else. That a Pod is
//! _not_ there must be proven, since the watch of claims may be ahead of that of Pods: it was shown and then gone, or a
//! read from the server said so ([`Pods::wants`], [`Pods::read`]). A uid that is gone never comes back.
//!
//! Whether a Pod has ended is read from the whole object, when the watch tells that it changed and a Pod hold wants to
//! know: see [`has_ended`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use kube::ResourceExt;

use super::index::{Key, Kind, Watch};
use crate::api::{HoldType, LockClaim};
use crate::engine::{Moment, PodSight};

/// How often a Pod is asked for that claims name and the watch does not show.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// How often the Pod of a hold is read although no watch tells of a change: a watch may fall silent.
pub const READ_AGAIN: Duration = Duration::from_secs(30);

/// What is known of a Pod of this name and uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The watch shows it, or has not told what there is yet.
    There,
    /// It is proven to be gone, and never comes back.
    Gone,
    /// The watch does not show it, which proves nothing: read it.
    Unknown,
}

/// A Pod to be read, and the uids that are proven to be gone if it is not one of them.
pub type Wanted = BTreeMap<Key, BTreeSet<String>>;

/// What one watch shows.
#[derive(Debug, Default)]
struct View {
    /// By namespace and name: the uid. `None` until everything was listed once.
    shown: Option<HashMap<Key, String>>,
    listing: HashMap<Key, String>,
}

/// Who names a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namer {
    /// A claim: its owner, or what its hold lasts with.
    Claim(Key),
    /// A lock: the grant of a Heartbeat holder that runs in it.
    Lock(Key),
}

/// What is known of a Pod that claims or grants name.
#[derive(Debug, Default)]
struct Named {
    /// By whom, and whether each wants to hear of every change.
    by: BTreeMap<Namer, bool>,
    /// Whether the watch has told of a change since it is named.
    has_changed: bool,
    /// uids of this name that are gone.
    gone: HashSet<String>,
    /// The Pod as read, for those that hold while it lives.
    read: Read,
    /// When it was asked for last.
    asked: Option<Moment>,
}

#[derive(Debug, Default)]
enum Read {
    /// It has changed, or was never read.
    #[default]
    Stale,
    /// It is being read, asked for at that moment; should it change meanwhile, or be asked for anew by a look at another
    /// lock, the answer is stale.
    Asked(Moment),
    Known(PodSight, Moment),
}

/// What is known of Pods.
#[derive(Debug, Default)]
pub struct Pods {
    views: HashMap<Watch, View>,
    named: HashMap<Key, Named>,
    /// By lock: the Pods of its Heartbeat holders.
    of_grants: HashMap<Key, BTreeSet<Key>>,
}

impl Pods {
    /// A watch begins to list.
    pub fn list_begins(&mut self, watch: &Watch) {
        let view = self.views.entry(watch.clone()).or_default();
        view.listing.clear();
    }

    /// A watch lists a Pod.
    pub fn listed(&mut self, watch: &Watch, key: Key, uid: String) {
        let view = self.views.entry(watch.clone()).or_default();
        view.listing.insert(key, uid);
    }

    /// A watch has listed everything: what it showed before and did not list is gone. Says who is concerned.
    pub fn list_ends(&mut self, watch: &Watch) -> Vec<Namer> {
        let view = self.views.entry(watch.clone()).or_default();
        let now = std::mem::take(&mut view.listing);
        let before = view.shown.replace(now);
        for (key, uid) in before.into_iter().flatten() {
            if self.fate(&key, &uid) == Fate::Unknown {
                self.note_gone(&key, uid);
            }
        }
        // States in between may have been missed.
        let mut concerned = vec![];
        for (key, named) in &mut self.named {
            if watch
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == key.namespace)
            {
                named.read = Read::Stale;
                concerned.extend(named.by.keys().cloned());
            }
        }
        concerned
    }

    /// A watch shows a new state of a Pod. Says who is concerned: other labels or times concern nobody who asks only
    /// whether it is there.
    pub fn changed(&mut self, watch: &Watch, key: &Key, uid: &str) -> Vec<Namer> {
        let view = self.views.entry(watch.clone()).or_default();
        let shown = view.shown.get_or_insert_default();
        let before = shown.insert(key.clone(), uid.to_owned());
        let is_new = before.as_deref() != Some(uid);
        if let Some(before) = before.filter(|_| is_new) {
            self.note_gone(key, before);
        }
        self.tell(key, is_new)
    }

    /// A watch shows that a Pod is gone. Says who is concerned.
    pub fn gone(&mut self, watch: &Watch, key: &Key, uid: &str) -> Vec<Namer> {
        if let Some(shown) = self
            .views
            .get_mut(watch)
            .and_then(|view| view.shown.as_mut())
            && shown.get(key).is_some_and(|shown| shown == uid)
        {
            shown.remove(key);
        }
        self.note_gone(key, uid.to_owned());
        self.tell(key, true)
    }

    /// A claim was seen: from now on what it names is followed.
    pub fn claim_seen(&mut self, claim: &LockClaim) {
        for (key, holds) in names(claim) {
            self.name(key, Namer::Claim(Key::of(claim)), holds);
        }
    }

    /// A claim is gone, or about to be replaced by a newer state of it.
    pub fn claim_gone(&mut self, claim: &LockClaim) {
        for (key, _) in names(claim) {
            self.unname(&key, &Namer::Claim(Key::of(claim)));
        }
    }

    /// The Heartbeat holders of the lock run in these Pods: from now on their changes are followed.
    pub fn follow(&mut self, lock: &Key, pods: BTreeSet<Key>) {
        let before = self.of_grants.remove(lock).unwrap_or_default();
        for left in before.difference(&pods) {
            self.unname(left, &Namer::Lock(lock.clone()));
        }
        for new in pods.difference(&before) {
            self.name(new.clone(), Namer::Lock(lock.clone()), true);
        }
        if !pods.is_empty() {
            self.of_grants.insert(lock.clone(), pods);
        }
    }

    fn name(&mut self, pod: Key, namer: Namer, every_change: bool) {
        let by = &mut self.named.entry(pod).or_default().by;
        *by.entry(namer).or_default() |= every_change;
    }

    fn unname(&mut self, pod: &Key, namer: &Namer) {
        if let Some(named) = self.named.get_mut(pod) {
            named.by.remove(namer);
            if named.by.is_empty() {
                self.named.remove(pod);
            }
        }
    }

    /// What is known of the Pod of this name and uid.
    #[must_use]
    pub fn fate(&self, key: &Key, uid: &str) -> Fate {
        let named = self.named.get(key);
        if named.is_some_and(|named| named.gone.contains(uid)) {
            return Fate::Gone;
        }
        match self.view(key) {
            Some(shown) if shown.get(key).is_none_or(|shown| shown != uid) => Fate::Unknown,
            _ => Fate::There,
        }
    }

    /// Whether a Pod that owns the claim is proven to be gone.
    #[must_use]
    pub fn is_dead(&self, claim: &LockClaim) -> bool {
        owners(claim).any(|(key, uid)| self.fate(&key, uid) == Fate::Gone)
    }

    /// The Pod of the claim's Pod hold, as last read; `None` while that is not known.
    #[must_use]
    pub fn of_hold(&self, claim: &LockClaim) -> Option<&PodSight> {
        self.sight(&held(claim)?).map(|(sight, _)| sight)
    }

    /// The Pod of this name as last read, and when; `None` while that is not known.
    #[must_use]
    pub fn sight(&self, key: &Key) -> Option<(&PodSight, Moment)> {
        match &self.named.get(key)?.read {
            Read::Known(sight, at) => Some((sight, *at)),
            Read::Stale | Read::Asked(_) => None,
        }
    }

    /// The Pods that must be read before these claims of the lock, and its grants, can be judged. Read them, and tell
    /// [`Pods::read`]. The Pod of a Heartbeat holder only once it has changed: most grants end otherwise.
    pub fn wants<'a>(
        &mut self,
        lock: &Key,
        claims: impl IntoIterator<Item = &'a LockClaim>,
        now: Moment,
    ) -> Wanted {
        let mut wanted = Wanted::new();
        for key in self.of_grants.get(lock).into_iter().flatten() {
            if let Some(named) = self.named.get_mut(key)
                && named.has_changed
                && !matches!(named.read, Read::Known(..))
            {
                named.read = Read::Asked(now);
                wanted.entry(key.clone()).or_default();
            }
        }
        for claim in claims {
            for (key, uid) in owners(claim) {
                let asked = self.named.get(&key).and_then(|named| named.asked);
                if asked.is_none_or(|asked| now >= asked + ASK_AGAIN)
                    && self.fate(&key, uid) == Fate::Unknown
                {
                    wanted.entry(key).or_default().insert(uid.to_owned());
                }
            }
            if let Some(key) = held(claim)
                && let Some(named) = self.named.get_mut(&key)
                && !matches!(named.read, Read::Known(_, at) if now < at + READ_AGAIN)
            {
                named.read = Read::Asked(now);
                wanted.entry(key).or_default();
            }
        }
        wanted
    }

    /// A Pod was read from the server, asked for at `asked`: `None` if there was none of this name. Those of `uids`
    /// that it does not have are gone.
    pub fn read(&mut self, key: &Key, uids: BTreeSet<String>, pod: Option<&Pod>, asked: Moment) {
        let uid = pod.and_then(ResourceExt::uid);
        let Some(named) = self.named.get_mut(key) else {
            return;
        };
        named.asked = Some(asked);
        let gone = uids.into_iter().filter(|other| uid.as_ref() != Some(other));
        named.gone.extend(gone);
        if matches!(named.read, Read::Asked(at) if at == asked) {
            let ended = pod.is_some_and(has_ended);
            named.read = Read::Known(PodSight { uid, ended }, asked);
        }
    }

    /// The next moment at which a Pod that a read has shown, and no watch yet, is read again.
    pub fn asks_again<'a>(
        &self,
        claims: impl IntoIterator<Item = &'a LockClaim>,
    ) -> Option<Moment> {
        let claims = claims.into_iter();
        let unknown = claims
            .flat_map(owners)
            .filter(|(key, uid)| self.fate(key, uid) == Fate::Unknown);
        unknown
            .filter_map(|(key, _)| Some(self.named.get(&key)?.asked? + ASK_AGAIN))
            .min()
    }

    /// What the watch of this Pod's namespace shows, once it has listed everything.
    fn view(&self, key: &Key) -> Option<&HashMap<Key, String>> {
        let watch = |namespace| Watch {
            kind: Kind::Pods,
            namespace,
        };
        let view = self.views.get(&watch(Some(key.namespace.clone())));
        view.or_else(|| self.views.get(&watch(None)))?
            .shown
            .as_ref()
    }

    fn note_gone(&mut self, key: &Key, uid: String) {
        if let Some(named) = self.named.get_mut(key) {
            named.gone.insert(uid);
        }
    }

    fn tell(&mut self, key: &Key, all: bool) -> Vec<Namer> {
        let Some(named) = self.named.get_mut(key) else {
            return vec![];
        };
        named.read = Read::Stale;
        named.has_changed = true;
        let concerned = named.by.iter().filter(|(_, every)| all || **every);
        concerned.map(|(namer, _)| namer.clone()).collect()
    }
}

/// Name and uid of the Pods that own the claim: it goes with them.
fn owners(claim: &LockClaim) -> impl Iterator<Item = (Key, &str)> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let owners = claim.metadata.owner_references.iter().flatten();
    owners
        .filter(|owner| owner.kind == "Pod" && owner.api_version == "v1")
        .map(move |owner| (Key::new(namespace, &owner.name), owner.uid.as_str()))
}

/// The Pod that the claim's hold lasts with.
fn held(claim: &LockClaim) -> Option<Key> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let pod = claim.spec.hold.pod.as_ref()?;
    (claim.spec.hold.type_ == HoldType::Pod).then(|| Key::new(namespace, &pod.name))
}

/// Every Pod that the claim names, and whether it holds while that one lives.
fn names(claim: &LockClaim) -> impl Iterator<Item = (Key, bool)> {
    let owners = owners(claim).map(|(key, _)| (key, false));
    owners.chain(held(claim).map(|key| (key, true)))
}

/// Whether the kubelet reports that all containers of the Pod have ended, for good.
///
/// The phase alone proves nothing: others than the kubelet set it to Failed when a node is lost, and its containers may
/// still run. Nor do the containers alone: the kubelet may be about to start them again. So both must say so, init
/// containers and sidecars included; where a status was made up (`ContainerStatusUnknown`), or a restart was due and the
/// phase is not the kubelet's own, the Pod lives on until its object is gone. A deletionTimestamp ends nothing.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else {
        return false;
    };
    if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return false;
    }
    let inits = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let mains = status.container_statuses.as_deref().unwrap_or_default();
    let debuggers = status
        .ephemeral_container_statuses
        .as_deref()
        .unwrap_or_default();
    if !debuggers.iter().all(|status| ended(status).is_some()) {
        return false;
    }
    let all_ended = |containers: &[Container], statuses: &[ContainerStatus]| {
        containers.iter().all(|container| {
            let status = statuses.iter().find(|status| status.name == container.name);
            status.is_some_and(|status| ended(status).is_some())
        })
    };
    let init_containers = spec.init_containers.as_deref().unwrap_or_default();
    let stays_down = || {
        let mut exits = mains.iter().chain(inits).filter_map(ended);
        match spec.restart_policy.as_deref() {
            _ if restarts_by_its_own_rules(spec) => false,
            Some("Never") => true,
            Some("OnFailure") => exits.all(|exit| exit == 0),
            _ => false,
        }
    };
    (failed_to_start(spec, init_containers, inits, mains)
        || all_ended(init_containers, inits) && all_ended(&spec.containers, mains))
        && (stays_down() || is_finished_to_the_kubelet(status))
}

/// The exit code of a container that has ended, where the kubelet has seen it end.
fn ended(status: &ContainerStatus) -> Option<i32> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    (ended.reason.as_deref() != Some("ContainerStatusUnknown")).then_some(ended.exit_code)
}

/// Whether an init container failed in a Pod that restarts nothing: those after it were never started.
fn failed_to_start(
    spec: &PodSpec,
    init_containers: &[Container],
    inits: &[ContainerStatus],
    mains: &[ContainerStatus],
) -> bool {
    let status = |container: &Container| inits.iter().find(|status| status.name == container.name);
    let failed = init_containers.iter().position(|container| {
        container.restart_policy.is_none()
            && status(container)
                .and_then(ended)
                .is_some_and(|exit| exit != 0)
    });
    let never_ran = |status: &ContainerStatus| {
        status.container_id.as_ref().is_none_or(String::is_empty)
            && status
                .last_state
                .as_ref()
                .is_none_or(|last| last.terminated.is_none())
    };
    failed.is_some_and(|failed| {
        let (before, after) = init_containers.split_at(failed);
        spec.restart_policy.as_deref() == Some("Never")
            && before
                .iter()
                .all(|container| status(container).is_some_and(|status| ended(status).is_some()))
            && after
                .iter()
                .skip(1)
                .all(|container| status(container).is_none_or(never_ran))
            && mains.iter().all(never_ran)
    })
}

/// Whether containers say themselves when they are started again, whatever the Pod's restartPolicy.
fn restarts_by_its_own_rules(spec: &PodSpec) -> bool {
    let inits = spec.init_containers.iter().flatten();
    let mains = &spec.containers;
    // That of an init container makes it a sidecar, which ends with the Pod's work.
    mains.iter().any(|main| main.restart_policy.is_some())
        || mains.iter().chain(inits).any(|container| {
            let rules = container.restart_policy_rules.as_ref();
            rules.is_some_and(|rules| !rules.is_empty())
        })
}

/// Whether the phase is the kubelet's own: with it the kubelet says why the containers are not ready. Others set the phase
/// alone, such as the garbage collector of Pods, for a node that is gone or out of service, and leave what the kubelet said
/// before.
fn is_finished_to_the_kubelet(status: &PodStatus) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.type_ == "ContainersReady")
        .any(|condition| {
            matches!(
                condition.reason.as_deref(),
                Some("PodFailed" | "PodCompleted")
            )
        })
}

#[cfg(test)]
mod tests;
