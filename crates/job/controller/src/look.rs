//! Asking daemons how their nodes are, for no job.

use crate::nodes::{look, resolve};
use mend_messages::auth::Purpose;
use mend_messages::health::NodeReport;
use mend_messages::job::Secret;
use mend_report::with_causes;
use mend_wire::connect;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a node may take to answer; one that is down mostly says nothing at all.
const LIMIT: Duration = Duration::from_secs(3);

async fn ask(address: SocketAddr, secret: Secret) -> Result<NodeReport, String> {
    let asking = async {
        let mut connection = connect(address, Purpose::Job, &secret).await.map_err(|error| with_causes(&error))?;
        look(&mut connection).await
    };
    timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
}

/// What the daemons of these hosts tell, or why one does not; in this order. `known`: where daemons of running jobs are.
pub async fn ask_all(
    hosts: &[String],
    known: &BTreeMap<String, SocketAddr>,
    port: u16,
    secret: &Secret,
) -> Vec<(String, Result<NodeReport, String>)> {
    let at = known.iter().map(|(host, address)| (host.clone(), (address.ip().to_string(), address.port()))).collect();
    let mut asking = JoinSet::new();
    let mut found: Vec<_> = hosts.iter().map(|host| (host.clone(), Err("it was not asked".to_owned()))).collect();
    for (at, address) in resolve(hosts, &at, port).await.into_iter().enumerate() {
        match address {
            Ok(address) => {
                let secret = secret.clone();
                asking.spawn(async move { (at, ask(address, secret).await) });
            }
            Err(error) => found[at].1 = Err(with_causes(&error)),
        }
    }
    while let Some(joined) = asking.join_next().await {
        if let Ok((at, answer)) = joined {
            found[at].1 = answer;
        }
    }
    found
}
