module leasehold.dev/examples/leader-go

go 1.22
