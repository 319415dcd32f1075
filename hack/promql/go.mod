module leasehold.dev/hack/promql

go 1.26.0
