//! Every name that others can see: group, labels, annotations, condition types, reasons, and the limits of values.
//!
//! A name is written down here once; the CRDs, the engine, the operator, the client and the tests read it from here.

/// The API group of the custom resources, and the prefix of labels and annotations.
pub const GROUP: &str = "leasehold.dev";
/// The version of the API group.
pub const VERSION: &str = "v1alpha1";
/// `group/version` as it stands in `apiVersion`.
pub const API_VERSION: &str = "leasehold.dev/v1alpha1";

/// What to do where the server has no definitions, or old ones: for the end of a message. Helm's come first, since it
/// would find those that are applied by hand in its way.
pub const HOW_TO_INSTALL: &str = "with Helm install or upgrade the release that brings the definitions (crds.install=true), \
                                  without Helm: kubectl apply -f crds/";

/// The label on every Lease that the operator makes: the name of its lock.
pub const LABEL_LOCK: &str = "leasehold.dev/lock";
/// The label by which the owner of a foreign Lease consents to a lock's `leaseName`: the name of that lock.
pub const LABEL_SHARED_WITH: &str = "leasehold.dev/shared-with";

/// The annotation that each grant writes: token, hold and Pod, with the grant they belong to.
pub const ANNOTATION_GRANT: &str = "leasehold.dev/grant";
/// The annotation that names the claim whose turn it is: `<claim name>/<claim uid>`.
pub const ANNOTATION_NEXT: &str = "leasehold.dev/next";
/// The annotation written by what ends or replaces a grant: how the grant it names ended.
pub const ANNOTATION_ENDED: &str = "leasehold.dev/ended";
/// The annotation with node, host and pid of the holder as JSON: for people only.
pub const ANNOTATION_HOLDER: &str = "leasehold.dev/holder";
/// The annotation on slot 0's Lease by which the operator tells how many slots may be taken: who is named and knows
/// another number reads the lock again.
pub const ANNOTATION_SLOTS: &str = "leasehold.dev/slots";
/// The annotation that the chart's policies fill in on a claim: who made it, and may change or delete it.
pub const ANNOTATION_CREATED_BY: &str = "leasehold.dev/created-by";
/// The annotation of a lock without which the chart's policies let nobody delete it while it is held.
pub const ANNOTATION_ALLOW_DELETION: &str = "leasehold.dev/allow-deletion";
/// The annotation of a lock without which the chart's policies let nobody raise a floor above every token granted.
pub const ANNOTATION_ALLOW_TOKEN_JUMP: &str = "leasehold.dev/allow-token-jump";
/// The annotation of a Pod that asks for the sidecar, where the chart injects it: the name of a lock.
pub const ANNOTATION_LOCK: &str = "leasehold.dev/lock";
/// The annotation of such a Pod that says what the sidecar does once the lock is lost.
pub const ANNOTATION_ON_LOSS: &str = "leasehold.dev/on-loss";
/// The annotation of such a Pod that names the containers which need not end with the lock, with commas between them.
pub const ANNOTATION_MAY_OUTLIVE: &str = "leasehold.dev/may-outlive";

/// The holder of a Lease that was just made: a create can't be guarded, so no Lease is born free.
pub const HOLDER_MISSING: &str = "leasehold.dev/missing";

/// Condition of locks and claims: the lock can be taken and mirrored; the claim is granted.
pub const CONDITION_READY: &str = "Ready";
/// Condition of locks: at least one slot is held.
pub const CONDITION_HELD: &str = "Held";
/// Condition of locks and claims: something needs a person. Its reason says what.
pub const CONDITION_STALLED: &str = "Stalled";
/// Condition of locks: tokens are above the revision, so they count from status and annotations alone.
pub const CONDITION_TOKEN_AHEAD: &str = "TokenAheadOfRevision";
/// Condition of claims: the claim has its grant.
pub const CONDITION_GRANTED: &str = "Granted";

/// Nothing has been decided yet.
pub const REASON_PENDING: &str = "Pending";
/// All is as it should be.
pub const REASON_READY: &str = "Ready";
/// Nobody holds the lock.
pub const REASON_FREE: &str = "Free";
/// Somebody holds the lock.
pub const REASON_HELD: &str = "Held";
/// Its holder was lost and `onHolderLost` is Hold: it stays locked until the grant is revoked.
pub const REASON_ABANDONED: &str = "Abandoned";
/// There is nothing to report.
pub const REASON_OK: &str = "AsExpected";
/// The Lease belongs to something else, and the lock has no `leaseName` for it.
pub const REASON_LEASE_CONFLICT: &str = "LeaseConflict";
/// The Lease is gone, or was made again and waits out its last holder.
pub const REASON_LEASE_MISSING: &str = "LeaseMissing";
/// The Lease carries a grant written by a newer Leasehold.
pub const REASON_UNKNOWN_GRANT: &str = "UnknownGrantVersion";
/// The Lease named by `leaseName` lacks the label that consents.
pub const REASON_NOT_SHARED: &str = "LeaseNotShared";
/// The lock that a claim names does not exist.
pub const REASON_LOCK_NOT_FOUND: &str = "LockNotFound";
/// The lock that a claim names can't work; its own conditions say why.
pub const REASON_LOCK_STALLED: &str = "LockStalled";
/// A token from status, annotation or floor is above the revision.
pub const REASON_TOKEN_AHEAD: &str = "TokenAhead";
/// The Pod that a claim names does not exist, or is another one than its uid says: the claim waits.
pub const REASON_POD_NOT_FOUND: &str = "PodNotFound";
/// The claim has its grant.
pub const REASON_GRANTED: &str = "Granted";
/// The claim's grant was given back.
pub const REASON_RELEASED: &str = "Released";
/// The claim's grant was given back as its Pod had ended.
pub const REASON_POD_ENDED: &str = "PodEnded";
/// The claim's time was over.
pub const REASON_EXPIRED: &str = "Expired";
/// The claim's grant was taken away, by a raised floor or by hand.
pub const REASON_REVOKED: &str = "Revoked";
/// The claim's grant was taken away as it had lasted `maxHoldSeconds`.
pub const REASON_MAX_HOLD: &str = "MaxHold";
/// The queue has its `maxWaiters`.
pub const REASON_QUEUE_FULL: &str = "QueueFull";
/// The claim's `waitTimeoutSeconds` have passed.
pub const REASON_TIMED_OUT: &str = "TimedOut";

/// The highest fencing token: 2^53 - 1, the highest integer that every JSON reader keeps exact.
pub const MAX_TOKEN: i64 = (1 << 53) - 1;
/// The highest token believed when read from an annotation, which anybody may have edited: 2^52.
pub const MAX_ANNOTATION_TOKEN: i64 = 1 << 52;
/// The longest lease duration that counts, whatever a Lease says: a day.
pub const MAX_LEASE_SECONDS: i32 = 86_400;
/// The longest `leaseDurationSeconds` of a lock: an hour.
pub const MAX_LOCK_LEASE_SECONDS: i32 = 3600;
/// The most slots of a lock.
pub const MAX_HOLDERS: i32 = 64;
/// A claim's priority is at most that, and at least minus that.
pub const MAX_PRIORITY: i32 = 1000;
/// The most claims that status lists by name.
pub const MAX_NEXT_WAITERS: usize = 5;
/// The most entries of a lock's history.
pub const MAX_HISTORY: i32 = 50;
/// The longest `holderIdentity` that status keeps, in characters; longer foreign ones are [`clip`]ped.
pub const MAX_IDENTITY_CHARS: usize = 320;
/// The longest name of an object, Pod, node or claimant, in characters.
pub const MAX_NAME_CHARS: usize = 253;
/// The longest message of a condition, in characters.
pub const MAX_MESSAGE_CHARS: usize = 32_768;

/// How the chart's policy for strict mode begins its refusal of a take that would replace a holder.
pub const STRICT_MODE_REFUSAL: &str = "strict mode: only the operator ends the hold of ";

/// What a claimant must be like, as the API server is told too.
pub const CLAIMANT_RULE: &str = "must begin and end with a letter or digit, with letters, digits and -._:@ between, \
                                 at most 253 characters";

/// Whether this can be a claimant: [`CLAIMANT_RULE`].
///
/// ```
/// use leasehold::api::names::is_claimant;
/// assert!(["pod-3", "x", "ci@build.7"].into_iter().all(is_claimant));
/// assert!(!["", "Bad Name/x", "-x", "x."].into_iter().any(is_claimant));
/// ```
#[must_use]
pub fn is_claimant(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:@".contains(c);
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= MAX_NAME_CHARS
        && name.chars().all(allowed)
        && ends(name.chars().next())
        && ends(name.chars().last())
}

/// What the name of a lock or a namespace must be like.
pub const LABEL_RULE: &str =
    "must be a DNS label: at most 63 lower case letters, digits and '-', with no '-' at its ends";

/// Whether this can be the name of a lock or a namespace: [`LABEL_RULE`].
///
/// ```
/// use leasehold::api::names::is_label;
/// assert!(["nightly-billing", "x", "7"].into_iter().all(is_label));
/// assert!(!["", "Team", "a.b", "../x", "-x", "x-"].into_iter().any(is_label));
/// ```
#[must_use]
pub fn is_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// `text` cut to at most `chars` characters, so that a status with foreign text in it is never refused.
///
/// ```
/// assert_eq!(leasehold::api::names::clip("grün", 3), "grü");
/// ```
#[must_use]
pub fn clip(text: &str, chars: usize) -> &str {
    match text.char_indices().nth(chars) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
