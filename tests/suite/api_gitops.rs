//! How tools that judge by conditions read locks and claims: by kstatus itself, the library that Flux uses, and by the
//! health checks for Argo CD that `docs/gitops.md` tells people to paste.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leasehold::api::names::{
    self, CONDITION_HELD, CONDITION_READY, CONDITION_STALLED, CONDITION_TOKEN_AHEAD,
};
use leasehold::api::{
    ClaimPhase, ConditionStatus, DistributedLock, DistributedLockStatus, LockClaim,
    LockClaimStatus, crds, set_condition,
};
use mlua::LuaSerdeExt;
use serde_json::{Value, json};

use super::api_local;

/// What a tool makes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Wait.
    InProgress,
    /// Give up.
    Failed,
    /// Go on.
    Current,
    /// It is being deleted.
    Terminating,
}

/// The real kstatus: a program that answers each object with a line.
struct Kstatus {
    program: Child,
    verdicts: BufReader<ChildStdout>,
}

/// It ends with this process, for then nobody writes to it any more.
static KSTATUS: LazyLock<Mutex<Kstatus>> = LazyLock::new(|| {
    let path = xtask::kstatus::ensure().expect("kstatus");
    let mut program = Command::new(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let verdicts = BufReader::new(program.stdout.take().expect("its output"));
    Mutex::new(Kstatus { program, verdicts })
});

/// What kstatus, and so Flux, makes of an object.
fn kstatus(object: &Value) -> Verdict {
    let mut said = String::new();
    {
        let mut kstatus = KSTATUS.lock().expect("it has not ended");
        let objects = kstatus.program.stdin.as_mut().expect("its input");
        writeln!(objects, "{object}").expect("it reads");
        kstatus.verdicts.read_line(&mut said).expect("it answers");
    }
    match said.trim_end() {
        "InProgress" => Verdict::InProgress,
        "Failed" => Verdict::Failed,
        "Current" => Verdict::Current,
        "Terminating" => Verdict::Terminating,
        said => panic!("{said}: {object:#}"),
    }
}

/// What a claim in this phase must read as.
fn due(phase: ClaimPhase) -> Verdict {
    match phase {
        ClaimPhase::Pending | ClaimPhase::Other => Verdict::InProgress,
        ClaimPhase::Granted => Verdict::Current,
        ClaimPhase::Released
        | ClaimPhase::Expired
        | ClaimPhase::Revoked
        | ClaimPhase::TimedOut
        | ClaimPhase::Rejected => Verdict::Failed,
    }
}

/// Fails if tools would take a claim of a server for something else than its phase says.
pub fn reads_right(claim: &LockClaim) {
    let seen = claim
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    if seen.is_none() || seen == claim.metadata.generation {
        let object = serde_json::to_value(claim).expect("a claim");
        assert_eq!(kstatus(&object), due(claim.phase()), "{object:#}");
    }
}

#[test]
fn kstatus_and_argo_cd_read_every_phase_of_a_claim_as_it_is_meant() {
    let argo_cd = ArgoCd::of_the_page();
    for (phase, reason) in [
        (ClaimPhase::Pending, names::REASON_PENDING),
        (ClaimPhase::Pending, names::REASON_LOCK_NOT_FOUND),
        (ClaimPhase::Pending, names::REASON_POD_NOT_FOUND),
        (ClaimPhase::Granted, names::REASON_GRANTED),
        (ClaimPhase::Released, names::REASON_RELEASED),
        (ClaimPhase::Released, names::REASON_POD_ENDED),
        (ClaimPhase::Expired, names::REASON_EXPIRED),
        (ClaimPhase::Revoked, names::REASON_REVOKED),
        (ClaimPhase::Revoked, names::REASON_MAX_HOLD),
        (ClaimPhase::TimedOut, names::REASON_TIMED_OUT),
        (ClaimPhase::Rejected, names::REASON_QUEUE_FULL),
    ] {
        let mut status = LockClaimStatus::default();
        status.set_phase(ClaimPhase::Pending, "Pending", "", Some(1), &at(1));
        status.set_phase(phase, reason, "words", Some(2), &at(2));
        let claim = object("LockClaim", &status);
        stored(&claim);
        assert_eq!(kstatus(&claim), due(phase), "{phase:?} {reason}");
        argo_cd.agrees(&claim);
    }
}

#[test]
fn a_claim_moves_its_transition_times_only_where_its_conditions_change() {
    let mut status = LockClaimStatus::default();
    status.set_phase(
        ClaimPhase::Granted,
        names::REASON_GRANTED,
        "",
        Some(1),
        &at(1),
    );
    let before = status.clone();
    status.set_phase(
        ClaimPhase::Granted,
        names::REASON_GRANTED,
        "",
        Some(1),
        &at(2),
    );
    assert_eq!(status, before);
    status.set_phase(
        ClaimPhase::Expired,
        names::REASON_EXPIRED,
        "",
        Some(1),
        &at(3),
    );
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.last_transition_time == at(3))
    );
}

#[test]
fn kstatus_and_argo_cd_read_every_state_of_a_lock_as_it_is_meant() {
    use ConditionStatus::{False, True, Unknown};
    let argo_cd = ArgoCd::of_the_page();
    let free = (CONDITION_HELD, False, names::REASON_FREE);
    let held = (CONDITION_HELD, True, names::REASON_HELD);
    let ready = (CONDITION_READY, True, names::REASON_READY);
    let well = (CONDITION_STALLED, False, names::REASON_OK);
    let ahead = (CONDITION_TOKEN_AHEAD, True, names::REASON_TOKEN_AHEAD);
    let abandoned = (CONDITION_HELD, True, names::REASON_ABANDONED);
    let mut cases = vec![
        (
            vec![(CONDITION_READY, Unknown, names::REASON_PENDING)],
            Verdict::InProgress,
        ),
        (vec![free, ready, well], Verdict::Current),
        (vec![held, ready, well], Verdict::Current),
        (vec![held, ready, well, ahead], Verdict::Current),
        (vec![abandoned, ready, well], Verdict::Current),
    ];
    for reason in [
        names::REASON_LEASE_CONFLICT,
        names::REASON_NOT_SHARED,
        names::REASON_LEASE_MISSING,
        names::REASON_UNKNOWN_GRANT,
    ] {
        let broken = [
            (CONDITION_READY, False, reason),
            (CONDITION_STALLED, True, reason),
        ];
        cases.push(([vec![free], broken.to_vec()].concat(), Verdict::Failed));
        // It goes by itself: the Lease of an earlier lock of this name.
        cases.push((vec![free, broken[0], well], Verdict::InProgress));
    }
    for (conditions, verdict) in cases {
        let mut status = DistributedLockStatus {
            observed_generation: Some(2),
            ..DistributedLockStatus::default()
        };
        for &(type_, value, reason) in &conditions {
            set_condition(
                &mut status.conditions,
                type_,
                value,
                reason,
                "words",
                Some(2),
                &at(1),
            );
        }
        let lock = object("DistributedLock", &status);
        stored(&lock);
        assert_eq!(kstatus(&lock), verdict, "{conditions:?}");
        argo_cd.agrees(&lock);
    }
}

#[test]
fn what_the_operator_has_not_seen_is_in_progress() {
    let argo_cd = ArgoCd::of_the_page();
    let mut seen = LockClaimStatus::default();
    seen.set_phase(
        ClaimPhase::Granted,
        names::REASON_GRANTED,
        "",
        Some(1),
        &at(1),
    );
    let changed = object("LockClaim", &seen);
    assert_eq!(
        kstatus(&changed),
        Verdict::InProgress,
        "a change not seen yet"
    );
    argo_cd.agrees(&changed);
    for kind in ["DistributedLock", "LockClaim"] {
        let born = stored(&object(kind, &json!(null)));
        assert_eq!(kstatus(&born), Verdict::InProgress, "{kind} as it is made");
        argo_cd.agrees(&born);
    }
    let mut deleted = changed;
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-29T17:00:00Z");
    assert_eq!(kstatus(&deleted), Verdict::Terminating);
}

#[test]
fn the_objects_of_the_page_are_good() {
    let objects: Vec<_> = page()
        .into_iter()
        .filter(|object| object["apiVersion"] == names::API_VERSION)
        .collect();
    assert_eq!(objects.len(), 2);
    for object in objects {
        stored(&object);
    }
    let paths = page()
        .iter()
        .filter_map(|document| document["spec"]["ignoreDifferences"].as_array().cloned())
        .flatten()
        .filter_map(|entry| entry["jsonPointers"].as_array().cloned())
        .flatten()
        .collect::<Vec<_>>();
    let floors = DistributedLock::new(
        "a",
        serde_json::from_value(json!({
            "minFencingToken": 1,
            "slotMinFencingTokens": [{"slot": 0, "token": 1}],
        }))
        .expect("a spec"),
    );
    let lock = serde_json::to_value(floors).expect("it can be written");
    assert_eq!(paths.len(), 2);
    for path in paths {
        assert!(
            lock.pointer(path.as_str().expect("a path")).is_some(),
            "{path}"
        );
    }
}

/// The health checks of the page, in the Lua that Argo CD runs.
struct ArgoCd {
    checks: Value,
}

impl ArgoCd {
    fn of_the_page() -> Self {
        let config = page()
            .into_iter()
            .find(|object| object["kind"] == "ConfigMap");
        let checks = config.expect("a ConfigMap")["data"].clone();
        Self { checks }
    }

    /// Fails where Argo CD would see the object otherwise than kstatus.
    fn agrees(&self, object: &Value) {
        let kind = object["kind"].as_str().expect("a kind");
        let check = &self.checks[format!("resource.customizations.health.{}_{kind}", names::GROUP)];
        let lua = mlua::Lua::new();
        // Absent, not null: a script of Argo CD sees the object as it is stored.
        let obj = lua
            .to_value(&api_local::complete(&json!({}), object))
            .expect("a table");
        lua.globals().set("obj", obj).expect("it is set");
        let health: mlua::Table = lua
            .load(check.as_str().expect("a script"))
            .eval()
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        let status: String = health.get("status").expect("a status");
        let _words: String = health.get("message").expect("a message");
        let same = match kstatus(object) {
            Verdict::InProgress | Verdict::Terminating => "Progressing",
            Verdict::Failed => "Degraded",
            Verdict::Current => "Healthy",
        };
        assert_eq!(status, same, "{object:#}");
    }
}

/// Every YAML document on the page.
fn page() -> Vec<Value> {
    let page = include_str!("../../docs/gitops.md");
    let blocks = page.split("```yaml\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().expect("a block"))
        .flat_map(|block| block.split("---\n"))
        .map(|document| serde_norway::from_str(document).expect("YAML"))
        .collect()
}

fn object(kind: &str, status: &impl serde::Serialize) -> Value {
    let spec = match kind {
        "LockClaim" => json!({"lockName": "a", "hold": {"type": "Heartbeat"}}),
        _ => json!({}),
    };
    json!({
        "apiVersion": names::API_VERSION,
        "kind": kind,
        "metadata": {"name": "a", "generation": 2},
        "spec": spec,
        "status": serde_json::to_value(status).expect("a status"),
    })
}

/// The object as the server would store it; fails if it would not.
fn stored(object: &Value) -> Value {
    let crd = crds()
        .into_iter()
        .find(|crd| object["kind"] == *crd.spec.names.kind)
        .expect("one of our kinds");
    let crd = serde_json::to_value(crd).expect("a definition");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    api_local::judge(schema, None, object)
        .unwrap_or_else(|errors| panic!("{errors:#?}: {object:#}"))
}

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).expect("a time"))
}
