//! The tellings: four on processes, five in Pods on a node.

use clap::ValueEnum;
use leasehold::api::EndReason;

/// The lease of those who do not renew it, in story seconds.
const PLAIN_LEASE: u32 = 120;
/// The lease of those who do.
const RENEWED_LEASE: u32 = 15;

/// Which of the tellings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// A plain 120 s lease, not renewed; the ledger checks nothing
    Naive,
    /// The same, but the ledger is a gate
    Fenced,
    /// `leasehold run`, a 15 s lease, renewed; the ledger is a gate
    Leasehold,
    /// The same, but holder and wrapper are killed
    Crash,
    /// --node: the freezer holds the holder's container for longer than its lease
    Frozen,
    /// --node: the kubelet of its node is killed, and started again after more than a lease
    Kubelet,
    /// --node: the holder's Pod is deleted
    Deleted,
    /// --node: the holder's container runs out of memory
    Oom,
    /// --node: the holder's Pod is deleted by force, and its work is deaf to SIGTERM
    Forced,
}

impl Kind {
    /// Those told on processes, in their order.
    pub(crate) const ON_PROCESSES: [Self; 4] =
        [Self::Naive, Self::Fenced, Self::Leasehold, Self::Crash];
    /// Those told in Pods, in their order.
    pub(crate) const IN_PODS: [Self; 5] = [
        Self::Frozen,
        Self::Kubelet,
        Self::Deleted,
        Self::Oom,
        Self::Forced,
    ];

    /// The name, in words, schemas and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Fenced => "fenced",
            Self::Leasehold => "leasehold",
            Self::Crash => "crash",
            Self::Frozen => "frozen",
            Self::Kubelet => "kubelet",
            Self::Deleted => "deleted",
            Self::Oom => "oom",
            Self::Forced => "forced",
        }
    }

    /// What it is about.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Naive => "a plain 120 s lease, never renewed; the ledger checks nothing",
            Self::Fenced => "a plain 120 s lease, never renewed; the ledger is a gate for tokens",
            Self::Leasehold => {
                "leasehold run: a 15 s lease, renewed; the ledger is a gate for tokens"
            }
            Self::Crash => "leasehold run, and kill -9 for holder and wrapper",
            Self::Frozen => "the freezer holds the container for longer than its lease",
            Self::Kubelet => "the node's kubelet is away for longer than the lease",
            Self::Deleted => "the Pod is deleted",
            Self::Oom => "the container runs out of memory",
            Self::Forced => "the Pod is deleted by force, its work deaf to SIGTERM",
        }
    }

    /// Whether it is told in Pods on a node.
    pub(crate) fn is_in_pods(self) -> bool {
        Self::IN_PODS.contains(&self)
    }

    /// The lease of a telling on processes, in story seconds.
    pub(crate) fn lease(self) -> u32 {
        if self.renews() {
            RENEWED_LEASE
        } else {
            PLAIN_LEASE
        }
    }

    /// Whether the contenders are `leasehold run`.
    pub(crate) fn renews(self) -> bool {
        !matches!(self, Self::Naive | Self::Fenced)
    }

    /// Whether the ledger compares tokens.
    pub(crate) fn has_gate(self) -> bool {
        self != Self::Naive
    }

    /// Whether the holder freezes, and thaws later.
    pub(crate) fn freezes(self) -> bool {
        matches!(
            self,
            Self::Naive | Self::Fenced | Self::Leasehold | Self::Frozen
        )
    }

    /// What happens to the holder, in a word or two.
    pub(crate) fn blow(self) -> &'static str {
        match self {
            Self::Naive | Self::Fenced | Self::Leasehold | Self::Frozen => "freezes",
            Self::Crash => "dies",
            Self::Kubelet => "the kubelet dies",
            Self::Deleted => "is deleted",
            Self::Oom => "runs out of memory",
            Self::Forced => "is deleted by force",
        }
    }

    /// How the struck one's grant may end, as the lock's history tells; of processes nobody asks.
    pub(crate) fn ends_as(self) -> &'static [EndReason] {
        match self {
            Self::Frozen => &[EndReason::Expired],
            Self::Kubelet | Self::Deleted => &[EndReason::Released],
            Self::Oom => &[EndReason::Ended],
            // It may be given back as long as the API server still takes the token of the Pod that is gone.
            Self::Forced => &[EndReason::Expired, EndReason::Released],
            Self::Naive | Self::Fenced | Self::Leasehold | Self::Crash => &[],
        }
    }

    /// What undoes it later, if anything does.
    pub(crate) fn relief(self) -> Option<&'static str> {
        match self {
            Self::Naive | Self::Fenced | Self::Leasehold | Self::Frozen => Some("thaws"),
            Self::Kubelet => Some("the kubelet is back"),
            Self::Crash | Self::Deleted | Self::Oom | Self::Forced => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_telling_is_told_on_processes_or_in_pods() {
        let all = [&Kind::ON_PROCESSES[..], &Kind::IN_PODS].concat();
        assert_eq!(all, Kind::value_variants());
    }
}
