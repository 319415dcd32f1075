//! The examples that hold by plain YAML: claimed with kubectl alone, as people and pipelines that may do no more.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use kube::ResourceExt;
use leasehold::api::{ClaimPhase, LockClaim, names};
use serde_json::{Value, json};

use super::examples::{apply, commands, given_back, lock_is, team};
use super::operator_place::{claim_condition, token};
use super::server::within;
use super::stage::{LONG, Team, example, shows};

/// Whoever acts in a namespace, with nothing but kubectl.
struct Person {
    kubeconfig: PathBuf,
    path: std::ffi::OsString,
}

impl Person {
    /// With the credentials of this file.
    fn with(team: &Team, kubeconfig: &Path) -> Self {
        let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let mut kubeconfig: Value = serde_norway::from_str(&text).expect("YAML");
        kubeconfig["contexts"][0]["context"]["namespace"] = json!(team.namespace);
        Self::of(team, &kubeconfig)
    }

    /// Somebody of this name, with the built-in role edit.
    fn editor(team: &Team, name: &str) -> Self {
        let user = format!("--user={name}");
        team.kubectl(&["create", "rolebinding", name, "--clusterrole=edit", &user]);
        let text = std::fs::read_to_string(team.cluster().kubeconfig()).expect("a kubeconfig");
        let mut kubeconfig: Value = serde_norway::from_str(&text).expect("YAML");
        kubeconfig["users"][0]["user"]["as"] = json!(name);
        kubeconfig["contexts"][0]["context"]["namespace"] = json!(team.namespace);
        Self::of(team, &kubeconfig)
    }

    /// Waits until the server knows of this right.
    async fn may(self, what: &str) -> Self {
        let may = async {
            while !self
                .runs(&format!("kubectl auth can-i {what}"))
                .status
                .success()
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, what, may).await;
        self
    }

    fn of(team: &Team, kubeconfig: &Value) -> Self {
        let name = format!("{:016x}.kubeconfig", rand::random::<u64>());
        let path = team.own.file(&name);
        std::fs::write(&path, kubeconfig.to_string()).expect("it can be written");
        let env = team.cluster().env();
        let (_, programs) = env
            .into_iter()
            .find(|(name, _)| *name == "PATH")
            .expect("a PATH");
        Self {
            kubeconfig: path,
            path: programs,
        }
    }

    /// Runs a script at the repository's root.
    fn runs(&self, script: &str) -> Output {
        let mut shell = Command::new("sh");
        shell
            .args(["-euc", script])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", &self.path)
            .current_dir(xtask::repository());
        tokio::task::block_in_place(|| shell.output().expect("sh runs"))
    }

    /// What a script that must succeed prints.
    fn does(&self, script: &str) -> String {
        let output = self.runs(script);
        let says = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{says}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What a script that must fail complains of.
    fn fails(&self, script: &str) -> String {
        let output = self.runs(script);
        assert!(!output.status.success(), "{script}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Applies a text.
    fn applies(&self, text: &str) {
        self.does(&format!("kubectl apply -f - <<'YAML'\n{text}\nYAML"));
    }
}

async fn claim_in(team: &Team, name: &str, phase: ClaimPhase) -> LockClaim {
    let what = format!("it is {phase:?}");
    let claims = team.place.claims.clone();
    shows(claims, name, &what, |claim| claim.phase() == phase).await
}

fn shown_token(words: &str) -> i64 {
    let after = words.split("with token ").nth(1).expect("a token");
    let number = after.split(' ').next().expect("a word");
    number.parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_claims_and_gives_back_with_the_kubectl_of_the_comment() {
    let team = team().await;
    apply(&team, "deploy-lock.yaml");
    let account = team.own.account(&team.namespace, "pipeline").await;
    let pipeline = Person::with(&team, &account);
    let pipeline = pipeline.may("use distributedlocks/production").await;
    let script = commands("deploy-claim.yaml");
    let first = shown_token(&pipeline.does(&script));

    // The next run, while another one deploys, waits for it.
    let another = example("deploy-claim.yaml").replace("deploy-42", "deploy-41");
    pipeline.applies(&another);
    let between = claim_in(&team, "deploy-41", ClaimPhase::Granted).await;
    let waits = script.replace("--timeout=30m", "--timeout=1s");
    pipeline.fails(&waits);
    assert_eq!(
        team.place
            .claims
            .get("deploy-42")
            .await
            .expect("the claim")
            .phase(),
        ClaimPhase::Pending
    );
    pipeline.does("kubectl delete lclaim/deploy-41");
    let last = shown_token(&pipeline.does(&script));
    assert!(first < token(&between) && token(&between) < last);
    given_back(&team, "production", 3).await;

    // No more than that may it do.
    let words = pipeline.fails("kubectl delete dlock/production");
    assert!(words.contains("cannot delete"), "{words}");
    let words = pipeline.fails("kubectl get leases");
    assert!(words.contains("cannot list"), "{words}");
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_is_held_prolonged_given_back_and_ends_by_itself() {
    let team = team().await;
    let text = example("fixed-hold.yaml");
    let lock = text.split("---\n").nth(1).expect("the lock");
    team.apply_text(lock);
    let right = "use distributedlocks/staging";
    let alice = Person::editor(&team, "alice").may(right).await;
    let bob = Person::editor(&team, "bob").may(right).await;

    // Seated, prolonged and up again, as the comment says.
    let script = commands("fixed-hold.yaml");
    let (seated, done) = script.split_once("kubectl patch").expect("it is prolonged");
    alice.does(seated);
    let held = claim_in(&team, "alice-1", ClaimPhase::Granted).await;
    let prolong = format!("kubectl patch{}", done.lines().next().expect("a line"));
    alice.does(&prolong);
    let until = |claim: &LockClaim| {
        let status = claim.status.as_ref().expect("a status");
        status.expire_time.as_ref().expect("an end").0
    };
    let claims = team.place.claims.clone();
    let longer = shows(claims, "alice-1", "it ends later", |claim| {
        until(claim) > until(&held)
    });
    let more = until(&longer.await).as_second() - until(&held).as_second();
    assert!((599..=601).contains(&more), "{more}");
    let words = alice.fails(&prolong.replace("1200", "60"));
    assert!(words.contains("seconds"), "{words}");

    // The next one waits, for a seat of three seconds; and nobody takes another's seat away.
    let short = text
        .replace("alice", "bob")
        .replace("seconds: 600", "seconds: 3");
    bob.applies(&short);
    let words = bob.fails("kubectl delete lclaim alice-1");
    assert!(words.contains("this claim was made by alice"), "{words}");
    assert_eq!(
        team.place
            .claims
            .get("bob-1")
            .await
            .expect("the claim")
            .phase(),
        ClaimPhase::Pending
    );
    alice.does(done.lines().nth(1).expect("the end"));
    let next = claim_in(&team, "bob-1", ClaimPhase::Granted).await;
    assert!(token(&next) > token(&held));

    // It ends by itself, and the third one sits down.
    alice.applies(&text.replace("alice-1", "alice-2"));
    claim_in(&team, "bob-1", ClaimPhase::Expired).await;
    let third = claim_in(&team, "alice-2", ClaimPhase::Granted).await;
    assert!(token(&third) > token(&next));
    team.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_holds_as_long_as_it_lives_without_knowing_of_it() {
    let team = team().await;
    apply(&team, "pod-hold.yaml");
    let held = claim_in(&team, "indexer-0", ClaimPhase::Granted).await;
    let pod = team.pod_is("indexer-0", "it runs", |pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Running")
    });
    let uid = pod.await.uid();
    let lock = lock_is(&team, "indexer", "it shows its Pod", |lock| {
        lock.slot_status(0).is_some_and(|slot| slot.pod_uid == uid)
    });
    let shown = lock.await.slot_token(0).expect("a token");
    assert_eq!(shown.get(), token(&held));

    team.kubectl(&["delete", "pod", "indexer-0", "--wait=false"]);
    let over = claim_in(&team, "indexer-0", ClaimPhase::Released).await;
    let (_, reason) = claim_condition(&over, names::CONDITION_GRANTED);
    assert_eq!(reason, "PodEnded");
    team.finish().await;
}
