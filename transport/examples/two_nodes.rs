//! One of two nodes that exchange authenticated frames; README has the commands around it.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "shows it")]
use std::{env::args, error::Error, path::Path, process::exit, sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::timeout};
use transport::{Amount, Answer, Boot, Config, Credentials, Frame, Inbound, Incarnation, Lane};
use transport::{NodeIdentity, Outcome, PeerId, ReplySlot, SendOptions, TlsFiles, Transport};
use transport::{Verified, io::clock};

const LIMIT: Duration = Duration::from_secs(60);
struct Echo(mpsc::Sender<Lane>);

impl Inbound for Echo {
    fn deliver(&self, peer: PeerId, lane: Lane, frame: Verified<Frame>, slot: ReplySlot) {
        println!("node {peer} says on {lane}: {:?}", frame.items());
        slot.answer(Answer::Taken("welcome".into()));
        self.0.try_send(lane).ok();
    }
}

async fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [_, dir, node, listen, peer, address] = arguments else {
        return Err("usage: two_nodes DIR NODE LISTEN PEER ADDRESS".into());
    };
    let identity = NodeIdentity::new("dev".parse()?, node.parse()?);
    let file = |name: &str| Path::new(dir).join(name);
    let [cert, key] = ["cert", "key"].map(|name| file(&format!("node-{node}/{name}.pem")));
    let files = TlsFiles::new(file("ca/ca.pem"), cert, key);
    let credentials = Credentials::load(&files, &identity, clock::wall())?;
    let incarnation = Incarnation::new([node.len() as u8; 16]);
    let (peer, peers) = (peer.parse()?, [(peer.parse()?, address.clone())].into());
    let config = Config::new(identity, incarnation, Boot::new(1), listen.parse()?, peers);
    let (sender, mut heard) = mpsc::channel(2);
    let transport = Transport::start(config, credentials, Arc::new(Echo(sender))).await?;
    let link = transport.peer(peer)?;
    for lane in Lane::ALL {
        let mut room = link.try_reserve(lane, Amount::new(1, 64))?;
        let hello = format!("hello from {node}").into();
        let receipt = room.send(hello, SendOptions::until(clock::now() + LIMIT))?;
        let outcome = receipt.await;
        println!("ours to node {peer} on {lane} ended as {outcome:?}");
        let well = matches!(outcome, Outcome::Replied(_));
        if !well || timeout(LIMIT, heard.recv()).await.is_err() {
            let why = transport.status().lanes.swap_remove(0).last_end;
            let why = why.map_or("it said nothing".into(), |end| end.to_string());
            return Err(format!("no exchange with node {peer} on {lane}: {why}").into());
        }
    }
    transport.shut_down(LIMIT).await;
    Ok(())
}

#[tokio::main]
async fn main() {
    let ended = run(&args().collect::<Vec<_>>()).await;
    exit(ended.map_or_else(|error| (eprintln!("{error}"), 1).1, |()| 0));
}
