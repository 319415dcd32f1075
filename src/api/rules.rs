//! The CEL rules of both kinds, as the API server runs them.
//!
//! All stand at the root of the schema: a transition rule further down is skipped when the field, or the whole status,
//! is taken away. A rule that compares old and new covers the removal too, so nothing can be evaded by leaving it out.

/// One rule: what must hold, what to tell whoever breaks it, and the field to blame.
pub(super) struct Rule {
    pub expression: &'static str,
    pub message: &'static str,
    pub field_path: Option<&'static str>,
}

const fn rule(field_path: &'static str, expression: &'static str, message: &'static str) -> Rule {
    Rule {
        expression,
        message,
        field_path: Some(field_path),
    }
}

/// Rules of `DistributedLock`.
pub(super) const LOCK: &[Rule] = &[
    Rule {
        expression: "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
        message: "a lock's name must be a DNS label: lower case letters, digits and '-', at most 63 characters",
        field_path: None, // the schema of metadata has no fields to point at
    },
    rule(
        ".spec.leaseName",
        "!has(self.spec.leaseName) || !format.dns1123Subdomain().validate(self.spec.leaseName).hasValue()",
        "leaseName must be a DNS subdomain: lower case letters, digits, '-' and '.'",
    ),
    rule(
        ".spec.leaseName",
        "!has(self.spec.leaseName) || !self.spec.leaseName.matches('[.][0-9]+$')",
        "leaseName must not look like another lock's slot (NAME.n): choose a Lease whose name does not end so",
    ),
    rule(
        ".spec.leaseName",
        "has(self.spec.leaseName) == has(oldSelf.spec.leaseName) \
         && (!has(self.spec.leaseName) || self.spec.leaseName == oldSelf.spec.leaseName)",
        "leaseName is immutable, it cannot be added or removed either: make a new lock",
    ),
    rule(
        ".spec.leaseName",
        "!has(self.spec.leaseName) || !has(self.spec.maxHolders) || self.spec.maxHolders == 1",
        "leaseName works with maxHolders 1 only: a Lease of another client is one slot",
    ),
    rule(
        ".spec.maxHoldSeconds",
        "!has(self.spec.maxHoldSeconds) || !has(self.spec.leaseDurationSeconds) \
         || self.spec.maxHoldSeconds >= self.spec.leaseDurationSeconds",
        "maxHoldSeconds must not be shorter than leaseDurationSeconds, the time within which it can be enforced: \
         raise it, or shorten the lease",
    ),
    rule(
        ".spec.minFencingToken",
        "!has(oldSelf.spec.minFencingToken) \
         || (has(self.spec.minFencingToken) && self.spec.minFencingToken >= oldSelf.spec.minFencingToken)",
        "minFencingToken may only rise: set it higher or leave it, and keep it out of files in Git",
    ),
    rule(
        ".spec.slotMinFencingTokens",
        "!has(oldSelf.spec.slotMinFencingTokens) || oldSelf.spec.slotMinFencingTokens.all(o, \
         has(self.spec.slotMinFencingTokens) \
         && self.spec.slotMinFencingTokens.exists(n, n.slot == o.slot && n.token >= o.token))",
        "a slot's token in slotMinFencingTokens may only rise, and no entry is removed: set it higher or leave it, \
         and keep it out of files in Git",
    ),
    rule(
        ".spec.slotMinFencingTokens",
        "!has(self.spec.slotMinFencingTokens) || self.spec.slotMinFencingTokens.all(n, \
         n.slot < (has(self.spec.maxHolders) ? self.spec.maxHolders : 1) \
         || (has(oldSelf.spec.slotMinFencingTokens) \
         && oldSelf.spec.slotMinFencingTokens.exists(o, o.slot == n.slot)) \
         || (has(oldSelf.status) && has(oldSelf.status.slots) \
         && oldSelf.status.slots.exists(o, o.slot == n.slot)))",
        "slotMinFencingTokens names a slot that the lock does not have and never had: slots are counted from 0 to \
         maxHolders - 1",
    ),
    rule(
        ".status.fencingToken",
        "!has(oldSelf.status) || !has(oldSelf.status.fencingToken) \
         || (has(self.status) && has(self.status.fencingToken) \
         && self.status.fencingToken >= oldSelf.status.fencingToken)",
        "status.fencingToken never falls: read the lock again before writing its status",
    ),
    rule(
        ".status.longestLeaseDurationSeconds",
        "!has(oldSelf.status) || !has(oldSelf.status.longestLeaseDurationSeconds) \
         || (has(self.status) && has(self.status.longestLeaseDurationSeconds) \
         && self.status.longestLeaseDurationSeconds >= oldSelf.status.longestLeaseDurationSeconds)",
        "status.longestLeaseDurationSeconds only rises: read the lock again before writing its status",
    ),
    rule(
        ".status.slots",
        "!has(oldSelf.status) || !has(oldSelf.status.slots) || oldSelf.status.slots.all(o, \
         has(self.status) && has(self.status.slots) && self.status.slots.exists(n, n.slot == o.slot))",
        "an entry of status.slots is never removed: keep it, with holderIdentity \"\" when the slot is free",
    ),
    rule(
        ".status.slots",
        "!has(oldSelf.status) || !has(oldSelf.status.slots) || !has(self.status) || !has(self.status.slots) \
         || oldSelf.status.slots.all(o, self.status.slots.all(n, \
         n.slot != o.slot || n.fencingToken >= o.fencingToken))",
        "a slot's fencingToken never falls: read the lock again before writing its status",
    ),
    rule(
        ".status.slots",
        "!has(oldSelf.status) || !has(oldSelf.status.slots) || !has(self.status) || !has(self.status.slots) \
         || oldSelf.status.slots.all(o, self.status.slots.all(n, \
         n.slot != o.slot || n.fencingToken > o.fencingToken \
         || n.holderIdentity == o.holderIdentity || n.holderIdentity == ''))",
        "a slot is taken only with a higher fencingToken: one token never has two holders",
    ),
];

/// Rules of `LockClaim`.
pub(super) const CLAIM: &[Rule] = &[
    rule(
        ".spec.lockName",
        "!format.dns1123Label().validate(self.spec.lockName).hasValue()",
        "lockName must be a DNS label, as the names of locks are: lower case letters, digits and '-'",
    ),
    rule(
        ".spec.claimant",
        "!has(self.spec.claimant) || self.spec.claimant.matches('^[A-Za-z0-9]([-A-Za-z0-9._:@]*[A-Za-z0-9])?$')",
        "claimant must begin and end with a letter or digit, with letters, digits and -._:@ between",
    ),
    rule(
        ".spec.hold.fixed",
        "(self.spec.hold.type == 'Fixed') == has(self.spec.hold.fixed)",
        "hold.fixed must be set when, and only when, hold.type is Fixed",
    ),
    rule(
        ".spec.hold.pod",
        "(self.spec.hold.type == 'Pod') == has(self.spec.hold.pod)",
        "hold.pod must be set when, and only when, hold.type is Pod",
    ),
    rule(
        ".spec.hold.pod.name",
        "!has(self.spec.hold.pod) || !format.dns1123Subdomain().validate(self.spec.hold.pod.name).hasValue()",
        "hold.pod.name must be the name of a Pod: lower case letters, digits, '-' and '.'",
    ),
    rule(
        ".spec.hold.pod.uid",
        "!has(self.spec.hold.pod) || !has(self.spec.hold.pod.uid) \
         || self.spec.hold.pod.uid.matches('^[A-Za-z0-9-]+$')",
        "hold.pod.uid must be the metadata.uid of a Pod: letters, digits and '-'; leave it out to have it bound at \
         the grant",
    ),
    rule(
        ".spec.lockName",
        "self.spec.lockName == oldSelf.spec.lockName",
        "lockName is immutable: make a new claim",
    ),
    rule(
        ".spec.claimant",
        "has(self.spec.claimant) == has(oldSelf.spec.claimant) \
         && (!has(self.spec.claimant) || self.spec.claimant == oldSelf.spec.claimant)",
        "claimant is immutable, it cannot be added or removed either: make a new claim",
    ),
    rule(
        ".spec.waitTimeoutSeconds",
        "has(self.spec.waitTimeoutSeconds) == has(oldSelf.spec.waitTimeoutSeconds) \
         && (!has(self.spec.waitTimeoutSeconds) \
         || self.spec.waitTimeoutSeconds == oldSelf.spec.waitTimeoutSeconds)",
        "waitTimeoutSeconds is immutable, it cannot be added or removed either: make a new claim",
    ),
    rule(
        ".spec.ttlSecondsAfterFinished",
        "has(self.spec.ttlSecondsAfterFinished) == has(oldSelf.spec.ttlSecondsAfterFinished) \
         && (!has(self.spec.ttlSecondsAfterFinished) \
         || self.spec.ttlSecondsAfterFinished == oldSelf.spec.ttlSecondsAfterFinished)",
        "ttlSecondsAfterFinished is immutable, it cannot be added or removed either: make a new claim",
    ),
    rule(
        ".spec.hold",
        "self.spec.hold.type == oldSelf.spec.hold.type \
         && has(self.spec.hold.pod) == has(oldSelf.spec.hold.pod) \
         && (!has(self.spec.hold.pod) || self.spec.hold.pod == oldSelf.spec.hold.pod)",
        "hold is immutable but for fixed.seconds: make a new claim",
    ),
    rule(
        ".spec.hold.fixed.seconds",
        "!has(oldSelf.spec.hold.fixed) || !has(self.spec.hold.fixed) \
         || self.spec.hold.fixed.seconds >= oldSelf.spec.hold.fixed.seconds",
        "hold.fixed.seconds may only rise: to end the hold earlier delete the claim",
    ),
    rule(
        ".status.phase",
        "!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase == 'Pending' \
         || (has(self.status) && has(self.status.phase) && (self.status.phase == oldSelf.status.phase \
         || (oldSelf.status.phase == 'Granted' && self.status.phase in ['Released', 'Expired', 'Revoked'])))",
        "phase goes from Pending to Granted to Released, Expired or Revoked, or from Pending to TimedOut or Rejected; \
         a final phase stays",
    ),
    rule(
        ".status.ticket",
        "!has(oldSelf.status) || !has(oldSelf.status.ticket) \
         || (has(self.status) && has(self.status.ticket) && self.status.ticket == oldSelf.status.ticket)",
        "ticket is written once: read the claim again before writing its status",
    ),
    rule(
        ".status.fencingToken",
        "!has(oldSelf.status) || !has(oldSelf.status.fencingToken) \
         || (has(self.status) && has(self.status.fencingToken) \
         && self.status.fencingToken == oldSelf.status.fencingToken)",
        "a claim's fencingToken is written once: a new grant needs a new claim",
    ),
];
