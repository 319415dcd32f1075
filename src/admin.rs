//! Small HTTP servers for probes and metrics: one way to listen and to serve for all of our programs.

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;

/// Binds the address that `flag` named; says in words why it can't.
pub async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; {flag} chooses another"))
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, router: Router) {
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "stopped serving probes and metrics");
    }
}
