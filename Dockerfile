# syntax=docker/dockerfile:1

# The program, linked statically (musl), so that the second stage needs nothing but it. `cargo xtask cluster image`
# replaces this stage with a folder that holds the program, by `--build-context build=FOLDER`.
FROM rust:1.92-alpine AS build
# For the C parts of ring, the TLS provider.
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --features cli --bin leasehold \
    && cp target/release/leasehold /leasehold

# No shell, no libraries, no root. The API server's certificate authority comes with the service account.
# To wrap a command of your own image: COPY --from=<this image> /leasehold /usr/local/bin/leasehold
FROM scratch
COPY --from=build /leasehold /leasehold
USER 65532:65532
ENTRYPOINT ["/leasehold"]
CMD ["operator"]
