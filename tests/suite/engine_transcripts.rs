//! Transcripts: `tests/engine/*.txt`, each a case told in commands, and what the engine says to each.
//!
//! A line is a command; lines with `=>` are its whole answer; `#` starts a comment. [`Stage::obey`] lists the commands.

mod operator;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use leasehold::engine::{
    Answer, ClaimView, Claimant, Ended, Grant, GrantNote, Held, Hold, Keeper, LeaseRecord,
    LockView, Moment, Move, NextChange, Observation, OnHolderLost, Patience, Requester, Seen,
    Standing, Turns, Write, change, missing_floor, standing,
};

use super::engine_words::{
    claim, claim_view, claimant, hold, identity, lock, new_lease, said, seconds, summary,
};

#[test]
fn transcripts_say_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engine");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() > 10, "the transcripts are there");
    let mut wrong = String::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        for difference in play(&text) {
            writeln!(wrong, "{name}:{difference}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Plays a transcript, and gives what is different.
fn play(text: &str) -> Vec<String> {
    let mut stage = Stage::new();
    let mut differences = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let said = stage.obey(line);
        let mut expected = Vec::new();
        while let Some((_, answer)) = lines.next_if(|(_, line)| line.trim().starts_with("=>")) {
            expected.push(answer.trim()[2..].trim().to_owned());
        }
        if said != expected {
            differences.push(format!(
                "{}: {line}\n  expected {expected:?}\n  said     {said:?}",
                number + 1
            ));
        }
    }
    differences
}

/// One lock, one Lease, one observer, one claimant, one operator.
struct Stage {
    now: Moment,
    /// How far the wall clock is ahead, in microseconds.
    wall_ahead: i64,
    lock: LockView,
    revision: u64,
    lease: Option<LeaseRecord>,
    seen: Option<Observation>,
    grant: Option<Grant>,
    remembered: i64,
    claims: Vec<ClaimView>,
    me: Claimant,
    write: Option<Write>,
    held: Option<Held>,
    keeper: Keeper,
    turns: Turns,
    operator_write: Option<LeaseRecord>,
}

impl Stage {
    fn new() -> Self {
        Self {
            now: Moment::ZERO,
            wall_ahead: 0,
            lock: lock(),
            revision: 100,
            lease: None,
            seen: None,
            grant: None,
            remembered: 0,
            claims: Vec::new(),
            me: claimant(Patience::Wait),
            write: None,
            held: None,
            keeper: Keeper::default(),
            turns: Turns::default(),
            operator_write: None,
        }
    }

    fn obey(&mut self, line: &str) -> Vec<String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let values: BTreeMap<&str, &str> = words
            .iter()
            .map(|word| word.split_once('=').unwrap_or((word, "")))
            .collect();
        match command {
            // at SECONDS
            "at" => {
                self.now = Moment::from_secs_f64(words[0].parse().unwrap());
                vec![]
            }
            // wall SECONDS: the wall clock is set forward, or back.
            "wall" => {
                self.wall_ahead += words[0].parse::<i64>().unwrap() * 1_000_000;
                vec![]
            }
            // lock duration= delay= longest= min= token= onlost=Hold closed uid=
            "lock" => {
                self.edit_lock(&values);
                self.me.lock_read(Some(vec![self.lock.clone()]), self.now);
                self.keeper.lock_read(self.lock.clone(), self.now);
                vec![]
            }
            // The same, and nobody has read it yet.
            "unseen-lock" => {
                self.edit_lock(&values);
                vec![]
            }
            // A new Lease: lease none | lease holder= duration= transitions= uid= …; then nobody has seen it yet.
            "lease" => {
                self.revision += 1;
                self.lease = (!values.contains_key("none")).then(|| new_lease(self.revision));
                self.edit(&values);
                vec![]
            }
            // A change by hand, of the same fields.
            "edit" => {
                self.revision += 1;
                self.edit(&values);
                vec![]
            }
            // Everybody sees the Lease: by an event, or by a get.
            "watch" => self.show(Seen::Watched),
            "read" => self.show(Seen::Read),
            // An event tells the claimant of a deletion.
            "gone" => {
                self.me.lease_seen(0, None, Seen::Watched, self.now);
                vec![]
            }
            "show" => vec![self.lease.as_ref().map_or("none".to_owned(), summary)],
            "standing" => vec![self.standing().map_or("none".to_owned(), |s| said(&s))],
            "floor" => vec![missing_floor(&self.lock, self.lease.as_ref().unwrap()).to_string()],
            "absurd" => vec![self.lease.as_ref().unwrap().has_absurd_token().to_string()],
            // take WHO hold=Fixed: by the observer, at once.
            "take" => self.take(words[0], &values),
            "renew" => {
                let record = change::renew(
                    &self.lock,
                    self.lease.as_ref().unwrap(),
                    self.grant.as_ref().unwrap(),
                    self.wall(),
                );
                self.put(record)
            }
            "release" => {
                let record = change::release(
                    self.lease.as_ref().unwrap(),
                    self.grant.as_ref().unwrap(),
                    "done",
                    self.wall(),
                );
                self.put(record)
            }
            "stamp" => match change::stamp(&self.lock, self.lease.as_ref().unwrap(), 0) {
                Some(record) => self.put(record),
                None => vec!["no token left".to_owned()],
            },
            // claims a b! c: in order, b's Pod being gone.
            "claims" => {
                self.claims = words
                    .iter()
                    .enumerate()
                    .map(|(at, name)| claim_view(name, at))
                    .collect();
                vec![]
            }
            // me wait | try | stop | ?: the claimant begins, stops, or says what it does.
            "me" => self.me(words[0]),
            // answered applied | refused | lost [at SECONDS]: the answer to its write.
            "answered" => self.answered(words[0]),
            // operator ? | leads | wrote: what the operator does; its write is applied.
            "operator" => self.operator(words[0]),
            other => panic!("unknown command {other}"),
        }
    }

    fn wall(&self) -> i64 {
        i64::try_from(self.now.as_micros()).unwrap() + self.wall_ahead
    }

    fn edit_lock(&mut self, values: &BTreeMap<&str, &str>) {
        let lock = &mut self.lock;
        for (key, value) in values {
            match *key {
                "duration" => lock.duration_seconds = value.parse().unwrap(),
                "delay" => lock.lock_delay_seconds = value.parse().unwrap(),
                "longest" => lock.longest_seconds = Some(value.parse().unwrap()),
                "min" => lock.min_token = Some(value.parse().unwrap()),
                "token" => lock.slot.get_or_insert_default().token = value.parse().unwrap(),
                "last" => lock.slot.get_or_insert_default().duration_seconds = value.parse().ok(),
                "holder" => {
                    let slot = lock.slot.get_or_insert_default();
                    (*value).clone_into(&mut slot.holder);
                }
                "hold" => lock.slot.get_or_insert_default().hold = Some(hold(value)),
                "onlost" => lock.on_holder_lost = OnHolderLost::Hold,
                "closed" => lock.slot = None,
                "adopts" => lock.adopts = true,
                "deleting" => lock.deleting = true,
                "uid" => (*value).clone_into(&mut lock.uid),
                other => panic!("unknown field {other}"),
            }
        }
    }

    fn edit(&mut self, values: &BTreeMap<&str, &str>) {
        let Some(lease) = &mut self.lease else {
            return;
        };
        lease.resource_version = self.revision;
        for (key, value) in values {
            match *key {
                "uid" => (*value).clone_into(&mut lease.uid),
                "holder" => (*value).clone_into(&mut lease.spec.holder),
                "missing" => lease.spec = change::missing(&self.lock, 0),
                "duration" => lease.spec.duration_seconds = value.parse().ok(),
                "transitions" => lease.spec.transitions = value.parse().unwrap(),
                "renewed" => lease.spec.renew_time = value.parse().ok(),
                "grant" => lease.grant = GrantNote::parse((!value.is_empty()).then_some(*value)),
                "ended" => lease.ended = Ended::parse(value),
                "next" => lease.next = (!value.is_empty()).then(|| claim(value)),
                "shared" => {
                    lease.lock_label = None;
                    lease.owners.clear();
                    lease.shared_with = Some("lock".to_owned());
                }
                "unlabelled" => lease.lock_label = None,
                "owner" => lease.owners = vec![("lock".to_owned(), (*value).to_owned())],
                "token" => {}
                other => panic!("unknown field {other}"),
            }
        }
        if let Some(token) = values.get("token") {
            // The note of the present holder.
            let id = lease.grant_id();
            lease.grant = GrantNote::parse(Some(&format!(
                "v1;{};{};{token};Heartbeat;/;{}",
                id.uid, id.transitions, id.holder
            )));
        }
    }

    fn show(&mut self, seen: Seen) -> Vec<String> {
        match (&self.lease, &mut self.seen) {
            (Some(lease), Some(known)) => known.note(lease, seen, self.now),
            (Some(lease), none) => *none = Some(Observation::first(lease, self.now)),
            (None, some) => *some = None,
        }
        self.me.lease_seen(0, self.lease.clone(), seen, self.now);
        self.keeper.lease_seen(self.lease.clone(), seen, self.now);
        vec![]
    }

    fn standing(&self) -> Option<Standing> {
        Some(standing::standing(
            &self.lock,
            self.lease.as_ref()?,
            self.seen.as_ref()?,
            self.now,
        ))
    }

    /// A write is applied, and everybody sees it.
    fn put(&mut self, mut record: LeaseRecord) -> Vec<String> {
        self.revision += 1;
        record.resource_version = self.revision;
        self.lease = Some(record);
        self.show(Seen::Watched);
        vec![self.lease.as_ref().map(summary).unwrap()]
    }

    fn take(&mut self, who: &str, values: &BTreeMap<&str, &str>) -> Vec<String> {
        let who = Requester {
            hold: values
                .get("hold")
                .map_or(Hold::Heartbeat, |word| hold(word)),
            remembered: self.remembered,
            ..Requester::heartbeat(identity(who))
        };
        let Some(standing) = self.standing() else {
            return vec!["no lease".to_owned()];
        };
        let lease = self.lease.as_ref().unwrap();
        match change::take(
            &self.lock,
            lease,
            standing,
            &who,
            NextChange::Keep,
            self.wall(),
        ) {
            Ok(take) => {
                self.grant = Some(take.grant);
                let mut said = self.put(take.record);
                if take.ahead_of_revision {
                    said.push("ahead of the revision".to_owned());
                }
                said
            }
            Err(error) => vec![error.to_string()],
        }
    }

    fn me(&mut self, what: &str) -> Vec<String> {
        match what {
            "wait" => self.me = claimant(Patience::Wait),
            "try" => self.me = claimant(Patience::Try),
            "stop" => self.me.stop(),
            _ => return self.ask_me(),
        }
        vec![]
    }

    /// Asks until there is something to write, or to wait for; reads are answered at once.
    fn ask_me(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.me.decide(self.now, self.wall()) {
                Move::ReadLock => {
                    said.push("reads the lock".to_owned());
                    self.me.lock_read(Some(vec![self.lock.clone()]), self.now);
                }
                Move::ReadLease(_) => {
                    said.push("reads the lease".to_owned());
                    self.me
                        .lease_seen(0, self.lease.clone(), Seen::Read, self.now);
                }
                Move::ReadClaim(claim) => {
                    said.push(format!("reads the claim {}", claim.name));
                    let counts = self.claims.iter().any(|other| other.claim == claim);
                    self.me.claim_read(&claim, counts);
                }
                Move::ListClaims => {
                    said.push("lists claims".to_owned());
                    self.me.claims_listed(self.claims.clone());
                }
                Move::MakeClaim => {
                    said.push("makes a claim".to_owned());
                    let view = claim_view("me", self.claims.len());
                    self.me.joined(view.claim.clone(), identity("me"));
                    self.claims.push(view);
                }
                Move::DeleteClaim(claim) => {
                    said.push("deletes its claim".to_owned());
                    self.claims.retain(|other| other.claim != claim);
                    self.me.left();
                }
                Move::StartOver => {
                    said.push("starts over".to_owned());
                    self.me.start_over(identity("me2"));
                }
                Move::Write(write) => {
                    let kind = match &write {
                        Write::Take { .. } => "takes",
                        Write::Confirm { .. } => "confirms",
                        Write::Settle { .. } => "settles",
                        Write::Name(_) => "names",
                        Write::PassOver(_) => "passes over",
                    };
                    said.push(format!("{kind}: {}", summary(write.record())));
                    self.me.sending(&write);
                    self.write = Some(write);
                    return said;
                }
                Move::Wait { until, why } => {
                    let until =
                        until.map_or(String::new(), |until| format!(" until {}", seconds(until)));
                    said.push(format!("waits{until}: {why:?}"));
                    return said;
                }
                Move::Refuse(why) => {
                    said.push(format!("refused: {why:?}"));
                    return said;
                }
                Move::Gone => {
                    said.push("gone".to_owned());
                    return said;
                }
            }
        }
    }

    fn answered(&mut self, how: &str) -> Vec<String> {
        let write = self.write.take().expect("a write was sent");
        let fits = self.lease.as_ref().is_some_and(|lease| {
            let record = write.record();
            lease.uid == record.uid && lease.resource_version == record.resource_version
        });
        // `lost-applied` is a write that was applied and not answered.
        if matches!(how, "applied" | "lost-applied") {
            assert!(fits, "the server would refuse that");
            self.revision += 1;
            let mut record = write.record().clone();
            record.resource_version = self.revision;
            self.lease = Some(record);
        }
        let answer = match how {
            "applied" => Answer::Applied(self.lease.clone().unwrap()),
            "refused" => Answer::Refused,
            _ => Answer::Unknown,
        };
        match self.me.answered(&write, answer, self.now, self.now) {
            Some(held) => {
                let said = format!(
                    "holds token {} until {}",
                    held.grant().token,
                    seconds(held.work_deadline())
                );
                self.held = Some(held);
                vec![said]
            }
            None => vec![],
        }
    }
}
