//! The words of the engine's tests: a lock and its Lease, names of claims and claimants, and Leases in one line.

use std::fmt::Write as _;

use leasehold::engine::{
    ClaimRef, ClaimView, Claimant, EndKind, Ended, Hold, LeaseRecord, LockView, Moment, Patience,
    Requester, SlotView, SpecRecord, Standing,
};

pub fn new_lease(revision: u64) -> LeaseRecord {
    LeaseRecord {
        uid: "L1".to_owned(),
        resource_version: revision,
        lock_label: Some("lock".to_owned()),
        owners: vec![("lock".to_owned(), "lock-1".to_owned())],
        spec: SpecRecord {
            duration_seconds: Some(1),
            ..SpecRecord::default()
        },
        ..LeaseRecord::default()
    }
}

/// A lock of one slot that is open.
pub fn lock() -> LockView {
    LockView {
        name: "lock".to_owned(),
        uid: "lock-1".to_owned(),
        duration_seconds: 15,
        longest_seconds: Some(15),
        slot: Some(SlotView::default()),
        ..LockView::default()
    }
}

pub fn claimant(patience: Patience) -> Claimant {
    let who = Requester::heartbeat(identity("me0"));
    Claimant::new(who, patience, Moment::ZERO)
}

/// Claims and identities of short names get uids in the form of uids.
pub fn uid(name: &str) -> String {
    let number = name
        .bytes()
        .fold(0_u64, |number, byte| number << 8 | u64::from(byte));
    format!("{number:036x}")
}

pub fn identity(name: &str) -> String {
    if name.contains('/') || name.contains('_') {
        return name.to_owned();
    }
    format!("{name}/{}", uid(name))
}

pub fn claim(name: &str) -> ClaimRef {
    ClaimRef {
        name: name.to_owned(),
        uid: uid(name),
    }
}

pub fn claim_view(name: &str, at: usize) -> ClaimView {
    let dead = name.ends_with('!');
    let fixed = name.contains('*');
    ClaimView {
        claim: claim(name.trim_end_matches(['!', '*'])),
        ticket: 10 + u64::try_from(at).unwrap(),
        priority: 0,
        hold: if fixed { Hold::Fixed } else { Hold::Heartbeat },
        waiting: true,
        dead,
    }
}

pub fn ranked(name: &str, at: usize, priority: i32) -> ClaimView {
    ClaimView {
        priority,
        ..claim_view(name, at)
    }
}

pub fn hold(word: &str) -> Hold {
    match word {
        "Fixed" => Hold::Fixed,
        "Pod" => Hold::Pod,
        _ => Hold::Heartbeat,
    }
}

pub fn short(identity: &str) -> &str {
    identity
        .rsplit_once("/0000")
        .map_or(identity, |(name, _)| name)
}

/// A Lease in one line: holder, duration, transitions, token, and what is there of `next` and `ended`.
pub fn summary(lease: &LeaseRecord) -> String {
    let holder = if lease.is_free() {
        "free"
    } else {
        short(&lease.spec.holder)
    };
    let mut text = format!(
        "{holder} {}s n{}",
        lease.spec.duration_seconds.unwrap_or(0),
        lease.spec.transitions
    );
    if let Some(token) = lease.current_token() {
        write!(text, " token {token}").unwrap();
    }
    if let Some(next) = &lease.next {
        write!(text, " next {}", next.name).unwrap();
    }
    if let Some(Ended {
        token, kind, by, ..
    }) = &lease.ended
    {
        let kind: &EndKind = kind;
        write!(text, " ended {token} {} by {}", kind.as_str(), short(by)).unwrap();
    }
    text
}

pub fn said(standing: &Standing) -> String {
    match standing {
        Standing::Held { until } => format!("held until {}", seconds(*until)),
        Standing::Unavailable(why) => format!("unavailable: {why:?}"),
        other => format!("{other:?}"),
    }
}

pub fn seconds(moment: Moment) -> String {
    format!("{}", moment.as_secs_f64())
}
