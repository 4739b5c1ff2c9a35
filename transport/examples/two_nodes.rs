#![expect(clippy::print_stdout, reason = "an example shows what it does")]
//! One of two nodes that exchange authenticated frames; README has the commands around it.
//! Usage: `two_nodes DIR NODE BASE_PORT`, where DIR holds what `multigroup certs` made.
use std::{env, error::Error, path::Path, sync::Arc, time::Duration};

use tokio::sync::mpsc::{self, Sender};
use transport::{Amount, Answer, Boot, Config, Credentials, Frame, Inbound, Incarnation, Lane};
use transport::{PeerId, ReplySlot, SendOptions, TlsFiles, Transport, Verified, io::clock};

struct Echo(Sender<Lane>);

impl Inbound for Echo {
    fn deliver(&self, peer: PeerId, lane: Lane, frame: Verified<Frame>, slot: ReplySlot) {
        println!("node {peer} says on {lane}: {:?}", frame.items());
        slot.answer(Answer::PerItem(
            frame.into_items().into_iter().map(Ok).collect(),
        ));
        self.0.try_send(lane).ok();
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, dir, node, base] = &arguments[..] else {
        return Err("usage: two_nodes DIR NODE BASE_PORT".into());
    };
    let (node, base): (u16, u16) = (node.parse()?, base.parse()?);
    let (other, path) = (3 - node, |name: &str| Path::new(dir).join(name));
    let identity = format!("mraft://demo/node/{node}").parse()?;
    let files = TlsFiles {
        ca: path("ca/ca.pem"),
        cert: path(&format!("node-{node}/cert.pem")),
        key: path(&format!("node-{node}/key.pem")),
        crl: None,
    };
    let credentials = Credentials::load(&files, &identity, clock::wall())?;
    let peer: PeerId = other.to_string().parse()?;
    let incarnation = Incarnation::new([u8::try_from(node)?; 16]);
    let listen = ([127, 0, 0, 1], base + node).into();
    let peers = [(peer, format!("127.0.0.1:{}", base + other))].into();
    let config = Config::new(identity, incarnation, Boot::new(1), listen, peers);
    let (sender, mut heard) = mpsc::channel(Lane::ALL.len());
    let transport = Transport::start(config, credentials, Arc::new(Echo(sender))).await?;
    for lane in Lane::ALL {
        let mut room = transport
            .peer(peer)?
            .try_reserve(lane, Amount::new(1, 64))?;
        let options = SendOptions::until(clock::now() + Duration::from_secs(10));
        let receipt = room.send(format!("hello from {node}").into(), options)?;
        println!("node {peer} answers on {lane}: {:?}", receipt.await);
        heard.recv().await;
    }
    transport.shut_down(Duration::from_secs(1)).await;
    Ok(())
}
