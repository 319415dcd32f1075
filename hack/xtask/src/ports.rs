//! Loopback ports for servers that several processes start at the same time.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

/// Below the kernel's range for outgoing connections, so that only another server can be in the way.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// `N` different ports on which nothing listens at this moment.
///
/// Another process may still be quicker: whoever uses them starts again with others when a bind fails. They are picked
/// at random from many, so that this is rare.
pub fn pick<const N: usize>() -> Result<[u16; N]> {
    let random = RandomState::new();
    let candidates = (0_u64..)
        .map(|nth| FIRST + u16::try_from(random.hash_one(nth) % u64::from(COUNT)).unwrap_or(0));
    let mut picked = [0; N];
    let mut seen = BTreeSet::new();
    let mut found = 0;
    for port in candidates.take(10_000) {
        if found == N {
            return Ok(picked);
        }
        if seen.insert(port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            picked[found] = port;
            found += 1;
        }
    }
    bail!(
        "no {N} free loopback ports between {FIRST} and {}",
        FIRST + COUNT
    )
}

/// How often another process may be quicker to take a port.
const ATTEMPTS: usize = 5;

/// Repeats a start, which picks its ports, while other processes are quicker to bind them.
pub fn until_bound<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match start() {
            Err(error) if format!("{error:#}").contains("ddress already in use") => {}
            other => return other,
        }
    }
    start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_below_the_range_of_outgoing_connections() {
        let ports = pick::<20>().unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 20);
        assert!(
            ports
                .iter()
                .all(|port| (FIRST..FIRST + COUNT).contains(port))
        );
    }

    #[test]
    fn a_port_in_use_is_not_picked() {
        let taken: Vec<_> = pick::<50>()
            .unwrap()
            .iter()
            .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).unwrap())
            .collect();
        let picked = pick::<500>().unwrap();
        assert!(
            taken
                .iter()
                .all(|listener| !picked.contains(&listener.local_addr().unwrap().port()))
        );
    }

    #[test]
    fn only_a_port_that_is_taken_is_a_reason_to_start_again() {
        let mut starts = 0;
        let result = until_bound(|| {
            starts += 1;
            if starts < 3 {
                bail!("listen tcp 127.0.0.1:1: bind: address already in use")
            }
            Ok(starts)
        });
        assert_eq!(result.unwrap(), 3);
        let mut starts = 0;
        let result: Result<()> = until_bound(|| {
            starts += 1;
            bail!("no such file")
        });
        assert!(result.is_err());
        assert_eq!(starts, 1);
    }
}
