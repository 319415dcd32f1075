//! What a Lease says, and the text of our annotations on it.

use std::fmt;

use super::WallMicros;
use crate::api::FencingToken;
use crate::api::names::{HOLDER_MISSING, MAX_ANNOTATION_TOKEN, MAX_TOKEN};

/// The part of `spec` that R3 compares: any difference is a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpecRecord {
    /// `holderIdentity`; empty when the Lease is free.
    pub holder: String,
    /// `leaseDurationSeconds`, where one is stored.
    pub duration_seconds: Option<i64>,
    /// `leaseTransitions`; 0 where none is stored.
    pub transitions: i64,
    /// `acquireTime`; for people.
    pub acquire_time: Option<WallMicros>,
    /// `renewTime`; for people, and so that each renewal changes something.
    pub renew_time: Option<WallMicros>,
    /// Every other field of `spec`, and times that could not be read, as canonical JSON.
    pub rest: String,
}

/// A Lease as it was read, or as it is to be written in place of the one that was read. The default says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseRecord {
    /// `metadata.uid`: part of every guarded write.
    pub uid: String,
    /// `metadata.resourceVersion`: part of every guarded write, and the base of the next token.
    pub resource_version: u64,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The label `leasehold.dev/lock`.
    pub lock_label: Option<String>,
    /// The label `leasehold.dev/shared-with`: the consent of an adopted Lease's owner.
    pub shared_with: Option<String>,
    /// Name and uid of every `DistributedLock` among the ownerReferences.
    pub owners: Vec<(String, String)>,
    /// `spec`.
    pub spec: SpecRecord,
    /// The annotation `leasehold.dev/grant`.
    pub grant: GrantNote,
    /// The annotation `leasehold.dev/next`: whose turn it is.
    pub next: Option<ClaimRef>,
    /// The annotation `leasehold.dev/ended`.
    pub ended: Option<Ended>,
    /// The annotation `leasehold.dev/holder`: JSON for people, never read by a rule.
    pub holder_note: Option<String>,
    /// The annotation `leasehold.dev/slots`, on slot 0's Lease: how many slots may be taken, as the operator last told.
    /// A hint to read the lock again; never a reason to take.
    pub slots: Option<u32>,
}

impl LeaseRecord {
    /// Whether the Lease has no holder.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.spec.holder.is_empty()
    }

    /// Whether the holder stands for whatever a deleted Lease held.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.spec.holder == HOLDER_MISSING
    }

    /// The grant annotation, if it speaks of the present holder. Annotations outlive their grant.
    #[must_use]
    pub fn current_grant(&self) -> Option<&Grant> {
        match &self.grant {
            GrantNote::V1(grant) if !self.is_free() && self.grant_id().is(grant) => Some(grant),
            _ => None,
        }
    }

    /// What "mine" compares: uid, holder and transitions (R1).
    #[must_use]
    pub fn grant_id(&self) -> GrantId {
        GrantId {
            uid: self.uid.clone(),
            holder: self.spec.holder.clone(),
            transitions: self.spec.transitions,
        }
    }

    /// The token of the present holder, if it has one.
    #[must_use]
    pub fn current_token(&self) -> Option<FencingToken> {
        self.current_grant().map(|grant| grant.token)
    }

    /// The highest believable token that the annotations mention, of whatever grant and uid.
    #[must_use]
    pub fn last_token(&self) -> i64 {
        let believable = self.noted_tokens().into_iter().flatten();
        let believable = believable.filter(|token| *token <= MAX_ANNOTATION_TOKEN);
        believable.max().unwrap_or(0)
    }

    /// The highest token that the annotations mention, believable or not.
    #[must_use]
    pub fn highest_noted_token(&self) -> i64 {
        self.noted_tokens().into_iter().flatten().max().unwrap_or(0)
    }

    /// Whether the annotations hold a number that is too large to be believed.
    #[must_use]
    pub fn has_absurd_token(&self) -> bool {
        let unreadable = match &self.grant {
            GrantNote::Damaged(text) => text.split(';').nth(3).is_some_and(is_beyond_all_tokens),
            _ => false,
        };
        unreadable || self.highest_noted_token() > MAX_ANNOTATION_TOKEN
    }

    fn noted_tokens(&self) -> [Option<i64>; 2] {
        let granted = match &self.grant {
            GrantNote::V1(grant) => Some(grant.token.get()),
            _ => None,
        };
        [granted, self.ended.as_ref().map(|ended| ended.token)]
    }

    /// The uid part of `<claimant>/<uid>`, where the holder's identity has one.
    #[must_use]
    pub fn holder_uid(&self) -> Option<&str> {
        self.spec
            .holder
            .rsplit_once('/')
            .map(|(_, uid)| uid)
            .filter(|_| !self.is_missing())
    }

    /// The end of the grant `id`, if the `ended` annotation speaks of it.
    #[must_use]
    pub fn end_of(&self, id: &GrantId, token: FencingToken) -> Option<&Ended> {
        self.ended.as_ref().filter(|ended| {
            ended.uid == id.uid && ended.transitions == id.transitions && ended.token == token.get()
        })
    }
}

/// A grant: uid of the Lease, holder, transitions. Two grants are the same only if all three are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId {
    /// uid of the Lease.
    pub uid: String,
    /// `holderIdentity`.
    pub holder: String,
    /// `leaseTransitions`.
    pub transitions: i64,
}

impl GrantId {
    /// Whether `grant` was written for this very grant.
    #[must_use]
    pub fn is(&self, grant: &Grant) -> bool {
        grant.uid == self.uid
            && grant.holder == self.holder
            && grant.transitions == self.transitions
    }
}

/// How a grant is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hold {
    /// By its holder, who renews it.
    Heartbeat,
    /// For a fixed number of seconds.
    Fixed,
    /// By the operator, while a Pod lives.
    Pod,
}

impl Hold {
    /// The word used in annotations, status and specs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Hold::Heartbeat => "Heartbeat",
            Hold::Fixed => "Fixed",
            Hold::Pod => "Pod",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Hold::Heartbeat, Hold::Fixed, Hold::Pod]
            .into_iter()
            .find(|hold| hold.as_str() == text)
    }
}

/// The Pod of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The annotation `leasehold.dev/grant`, as far as this version reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum GrantNote {
    /// Not there.
    #[default]
    Absent,
    /// `v1;…`
    V1(Grant),
    /// Written by a newer version: respected, never taken over.
    Unknown(String),
    /// Not readable: as if absent.
    Damaged(String),
}

/// `v1;<lease uid>;<leaseTransitions>;<token>;<hold>;<pod name>/<pod uid>;<holderIdentity>`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// uid of the Lease for which it was written.
    pub uid: String,
    /// `leaseTransitions` of that grant.
    pub transitions: i64,
    /// Its fencing token.
    pub token: FencingToken,
    /// How it is kept.
    pub hold: Hold,
    /// The Pod of the holder, where it has one.
    pub pod: Option<PodRef>,
    /// `holderIdentity` of that grant.
    pub holder: String,
}

impl GrantNote {
    /// Reads the annotation's text.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        let Some(text) = text else {
            return Self::Absent;
        };
        match parse_grant(text) {
            Some(grant) => Self::V1(grant),
            None if is_newer(text) => Self::Unknown(text.to_owned()),
            None => Self::Damaged(text.to_owned()),
        }
    }

    /// The annotation's text; `None` where there is none.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Absent => None,
            Self::V1(grant) => Some(grant.to_string()),
            Self::Unknown(text) | Self::Damaged(text) => Some(text.clone()),
        }
    }
}

/// `v2;`, `v17;`: a version that this program does not know.
fn is_newer(text: &str) -> bool {
    let version = text.split(';').next().unwrap_or_default();
    version
        .strip_prefix('v')
        .and_then(|digits| digits.parse::<u32>().ok())
        .is_some_and(|version| version != 1)
}

/// A number, but above 2^53 - 1.
fn is_beyond_all_tokens(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && !text.parse().is_ok_and(|number: i64| number <= MAX_TOKEN)
}

fn parse_grant(text: &str) -> Option<Grant> {
    let mut parts = text.splitn(7, ';');
    if parts.next()? != "v1" {
        return None;
    }
    let uid = parts.next().filter(|uid| !uid.is_empty())?.to_owned();
    let transitions = parts.next()?.parse().ok().filter(|count| *count >= 0)?;
    let token = FencingToken::new(parts.next()?.parse().ok()?).ok()?;
    let hold = Hold::parse(parts.next()?)?;
    let (pod_name, pod_uid) = parts.next()?.split_once('/')?;
    let pod = (!pod_name.is_empty()).then(|| PodRef {
        name: pod_name.to_owned(),
        uid: pod_uid.to_owned(),
    });
    let holder = parts.next().filter(|holder| !holder.is_empty())?.to_owned();
    Some(Grant {
        uid,
        transitions,
        token,
        hold,
        pod,
        holder,
    })
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, uid) = self
            .pod
            .as_ref()
            .map_or(("", ""), |pod| (&pod.name, &pod.uid));
        let Self {
            uid: lease,
            transitions,
            token,
            hold,
            pod: _,
            holder,
        } = self;
        write!(
            f,
            "v1;{lease};{transitions};{token};{};{name}/{uid};{holder}",
            hold.as_str()
        )
    }
}

/// `<claim name>/<claim uid>`
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimRef {
    /// The claim's name.
    pub name: String,
    /// The claim's uid.
    pub uid: String,
}

impl ClaimRef {
    /// Reads the annotation's text; what can't be read names nobody.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, uid) = text.split_once('/')?;
        (!name.is_empty() && !uid.is_empty()).then(|| Self {
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.uid)
    }
}

/// How a grant came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndKind {
    /// Its holder gave it back.
    Released,
    /// Its holder fell silent for the whole lease.
    Expired,
    /// Its token fell below `minFencingToken`.
    Revoked,
    /// Its holder's end was proven.
    Ended,
}

impl EndKind {
    /// The word used in the annotation, in history and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            EndKind::Released => "Released",
            EndKind::Expired => "Expired",
            EndKind::Revoked => "Revoked",
            EndKind::Ended => "Ended",
        }
    }
}

/// `v1;<uid>;<transitions>;<token>;Released|Expired|Revoked|Ended;<by>;<reason>`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    /// uid of the Lease of the grant that ended.
    pub uid: String,
    /// `leaseTransitions` of that grant.
    pub transitions: i64,
    /// Its token; 0 where it had none.
    pub token: i64,
    /// How it ended.
    pub kind: EndKind,
    /// Who wrote it.
    pub by: String,
    /// In words.
    pub reason: String,
}

impl Ended {
    /// Reads the annotation's text; what can't be read says nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(7, ';');
        if parts.next()? != "v1" {
            return None;
        }
        let uid = parts.next()?.to_owned();
        let transitions = parts.next()?.parse().ok()?;
        let token = parts.next()?.parse().ok().filter(|token| *token >= 0)?;
        let word = parts.next()?;
        let kinds = [
            EndKind::Released,
            EndKind::Expired,
            EndKind::Revoked,
            EndKind::Ended,
        ];
        let kind = kinds.into_iter().find(|kind| kind.as_str() == word)?;
        Some(Self {
            uid,
            transitions,
            token,
            kind,
            by: parts.next()?.to_owned(),
            reason: parts.next()?.to_owned(),
        })
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            uid,
            transitions,
            token,
            kind,
            by,
            reason,
        } = self;
        // `by` comes from identities; a separator inside it would shift the fields after it.
        write!(
            f,
            "v1;{uid};{transitions};{token};{};{};{reason}",
            kind.as_str(),
            by.replace(';', ",")
        )
    }
}
