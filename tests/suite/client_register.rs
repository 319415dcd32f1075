//! Writers that freeze and are cut off, and a register that each reads, then writes one higher.
//!
//! etcd-io/etcd#10811, Jepsen's analysis of the locks of etcd 3.4.3: a holder that was paused past its lease goes on
//! writing. The lock can't keep it from that, the gate can.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold::client::Guard;
use leasehold::clock::MonoInstant;
use leasehold::fence::{MemoryGate, Pass, Place};

use super::proxy::Proxy;
use super::run_bench::{Bench, long};

/// T of the lock.
const SECONDS: i32 = 1;

/// What is written to, and how often it was told to have been.
struct Register {
    value: Mutex<u64>,
    increments: Mutex<u64>,
    gate: Option<MemoryGate>,
    place: Place,
    ends_at: MonoInstant,
}

impl Register {
    fn read(&self) -> u64 {
        *self.value.lock().unwrap()
    }

    /// Whether the write was let in.
    async fn write(&self, value: u64, pass: &Pass) -> bool {
        let admission = match &self.gate {
            Some(gate) => match gate.admit(&self.place, pass).await {
                Ok(admission) => Some(admission),
                Err(_) => return false,
            },
            None => None,
        };
        *self.value.lock().unwrap() = value;
        *self.increments.lock().unwrap() += 1;
        drop(admission);
        true
    }

    fn lost(&self) -> u64 {
        *self.increments.lock().unwrap() - self.read()
    }

    /// Until its time is over; without a gate, until something was lost if that comes later.
    fn goes_on(&self) -> bool {
        let now = MonoInstant::now();
        let waits = self.gate.is_none() && self.lost() == 0;
        now < self.ends_at || waits && now < self.ends_at + Duration::from_mins(1)
    }
}

/// A writer is a thread with a runtime of its own: when it sleeps nothing of it runs, no renewal, no word of a loss, as in
/// a process that is frozen.
fn write_on(register: &Register, name: &str, proxy: &Proxy) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let locks = proxy.locks();
        while register.goes_on() {
            let asked = locks.lock("register").claimant(name);
            // Not shorter: who gives up while it is cut off leaves a dead claim, and there is no operator to delete it.
            let left = register
                .ends_at
                .saturating_duration_since(MonoInstant::now());
            let most = left.max(Duration::from_secs(4));
            if let Ok(guard) = asked.wait(most).acquire().await {
                hold(register, &guard).await;
                let _ = guard.release().await;
            }
        }
    });
}

/// A few increments under one grant; one of them is interrupted now and then.
async fn hold(register: &Register, guard: &Guard) {
    let pass = Pass::new(guard.token(), guard.identity());
    if let Some(gate) = &register.gate
        && gate.raise(&register.place, &pass).await.is_err()
    {
        return;
    }
    let freezes_at = rand::random_range(0..12);
    for step in 0..4 {
        // It looks before each step, as it should; what freezes it comes after the look.
        if !guard.is_held() {
            return;
        }
        let seen = register.read();
        if step == freezes_at {
            let lease = Duration::from_secs(SECONDS.unsigned_abs().into());
            thread::sleep(lease.mul_f64(rand::random_range(1.3..2.5)));
        } else {
            tokio::time::sleep(Duration::from_millis(rand::random_range(1..10))).await;
        }
        if !register.write(seen + 1, &pass).await {
            return;
        }
    }
}

/// The register after all have written for that long, some of them cut off from the server now and then.
async fn register(gate: Option<MemoryGate>, writers: usize, lasts: Duration) -> Register {
    let bench = Bench::new().await;
    bench.opened("register", SECONDS).await;
    let register = Register {
        value: Mutex::default(),
        increments: Mutex::default(),
        gate,
        place: Place::new(&bench.namespace, "register", 0),
        ends_at: MonoInstant::now() + lasts,
    };
    let mut proxies = Vec::new();
    for _ in 0..writers {
        proxies.push(Proxy::new(&bench).await);
    }
    tokio::task::block_in_place(|| write_all(&register, &proxies));
    bench.finish().await;
    register
}

/// All write until the end, and are cut off now and then.
fn write_all(register: &Register, proxies: &[Proxy]) {
    thread::scope(|scope| {
        for (number, proxy) in proxies.iter().enumerate() {
            scope.spawn(move || write_on(register, &format!("w{number}"), proxy));
        }
        scope.spawn(|| {
            while register.goes_on() {
                let some_ms = |range| Duration::from_millis(rand::random_range(range));
                thread::sleep(some_ms(500..2500));
                // One is partitioned, or the server restarts.
                let cut = if rand::random_bool(0.2) {
                    proxies
                } else {
                    &proxies[rand::random_range(0..proxies.len())..][..1]
                };
                cut.iter().for_each(Proxy::go_down);
                thread::sleep(some_ms(200..1500));
                cut.iter().for_each(Proxy::come_up);
            }
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_the_gate_no_update_is_lost_however_writers_freeze() {
    let (writers, lasts) = if long() { (10, 600) } else { (4, 8) };
    let lasts = Duration::from_secs(lasts);
    let (fenced, naive) = tokio::join!(
        tokio::spawn(register(Some(MemoryGate::new()), writers, lasts)),
        tokio::spawn(register(None, writers, lasts)),
    );
    let (fenced, naive) = (fenced.unwrap(), naive.unwrap());
    println!(
        "with the gate {} increments, {} lost; without it {} increments, {} lost",
        fenced.read(),
        fenced.lost(),
        naive.read(),
        naive.lost()
    );
    assert_eq!(fenced.lost(), 0);
    assert!(fenced.read() > 0, "they wrote");
    // Else nothing was shown: they froze, and the lock alone did not help.
    assert!(naive.lost() > 0);
}
