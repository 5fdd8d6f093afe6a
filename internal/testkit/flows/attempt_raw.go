package flows

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// sctp opens an association and leaves it at that.
func (a *attempt) sctp() outcome {
	packet := sctpPacket{
		source: a.port, destination: a.to.Port(), chunk: chunkInit, initTag: a.token,
	}.marshal()
	conn, err := a.sendRaw(sctpNetwork(a.to.Addr()), packet)
	if err != nil {
		return broken("cannot send: %v", err)
	}
	defer conn.Close()
	defer repeat(func() { conn.WriteToIP(packet, &net.IPAddr{IP: a.to.Addr().AsSlice()}) })()
	answers := make(chan outcome, 1)
	go a.readSCTP(conn, answers)
	select {
	case o := <-answers:
		return o
	case n := <-a.notices:
		return n.outcome()
	}
}

// readSCTP reads until the deadline of conn. Other associations of the host are heard here as well.
func (a *attempt) readSCTP(conn *net.IPConn, answers chan<- outcome) {
	buffer := make([]byte, 2048)
	cameBack := false
	for {
		var n int
		var peer *net.IPAddr
		err := a.untilAnswered(conn, func() (err error) {
			n, peer, err = conn.ReadFromIP(buffer)
			return err
		})
		if isTimeout(err) && cameBack {
			answers <- broken("arrived at %s, where nothing listens", a.to)
			return
		}
		if err != nil {
			answers <- a.afterSCTP(err)
			return
		}
		packet, ok := parseSCTP(buffer[:n])
		switch {
		case !ok:
		case packet.chunk == chunkInit && packet.initTag == a.token:
			// The sender is the receiver, and its open socket keeps the kernel from objecting.
			cameBack = true
		case packet.destination == a.port && packet.tag == a.token:
			answers <- a.judgeSCTP(packet, ipAddr(peer))
			return
		}
	}
}

func (a *attempt) afterSCTP(err error) outcome {
	if isTimeout(err) {
		return a.silence()
	}
	return broken("cannot read: %v", err)
}

func (a *attempt) judgeSCTP(packet sctpPacket, peer netip.Addr) outcome {
	if from := netip.AddrPortFrom(peer, packet.source); from != a.to {
		return broken("got an answer from %s", from)
	}
	if packet.chunk != chunkInitAck {
		return broken("was aborted")
	}
	reply, err := parseAnswer(packet.cookie)
	if err != nil {
		return broken("%v", err)
	}
	return outcome{kind: answered, local: netip.AddrPortFrom(a.from, a.port), answer: reply}
}

// ping sends an echo request. It counts as answered when the answer is back and somebody
// heard the request arrive, be it the sender itself.
func (a *attempt) ping() outcome {
	family := icmpOf(a.to.Addr())
	conn, err := a.sendRaw(family.network, family.echo(a.port))
	if err != nil {
		return broken("cannot send: %v", err)
	}
	defer conn.Close()
	deadline := time.After(a.patience)
	o := outcome{kind: answered, local: netip.AddrPortFrom(a.from, 0)}
	back, late := false, false
	for {
		select {
		case n := <-a.notices:
			switch {
			case n.kind == echoArrived:
				o.answer = answer{a.to, netip.AddrPortFrom(n.from, 0)}
			case n.kind == echoAnswered && n.from != a.to.Addr():
				return broken("got an answer from %s", n.from)
			case n.kind == echoAnswered:
				back = true
			default:
				return n.outcome()
			}
		case <-deadline:
			if late || !o.answer.reached.IsValid() {
				return a.unheard(o, back)
			}
			deadline, late = time.After(answerAfter), true
		}
		if back && o.answer.reached.IsValid() {
			return o
		}
	}
}

// unheard is the end of a ping that was not heard twice, at its end and back home.
func (a *attempt) unheard(o outcome, back bool) outcome {
	switch {
	case back:
		return broken("was answered by somebody else")
	case o.answer.reached.IsValid():
		return broken("reached %s, whose answer got lost", a.to)
	}
	return outcome{kind: silent}
}

// sendRaw sends one packet from the attempt's source address.
func (a *attempt) sendRaw(network string, packet []byte) (*net.IPConn, error) {
	conn, err := net.ListenIP(network, &net.IPAddr{IP: a.from.AsSlice()})
	if err != nil {
		return nil, err
	}
	conn.SetReadDeadline(time.Now().Add(a.patience))
	_, err = conn.WriteToIP(packet, &net.IPAddr{IP: a.to.Addr().AsSlice()})
	if err != nil && !errors.Is(err, unix.EPERM) {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
