package cluster

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// hostAddress is the address of a node, or of the clients, in a network of namespaces.
func hostAddress(number int) string { return fmt.Sprintf("10.77.0.%d", number+1) }

// longestQueue is for how long packets may wait for a rate before more of them are lost.
const longestQueue = 200 * time.Millisecond

// packets carries packets between the namespaces of nodes and clients. It loses, delays and
// reorders them as their ways say.
type packets struct {
	links   *Links
	hosts   []*namespace // by number
	listens map[uint16]bool

	mu      sync.Mutex
	refused map[pair]bool
	conns   map[conn]outcome
	waiting inFlight
	number  uint64
	more    chan struct{} // that something earlier than before waits
	closed  chan struct{}
	forward []net.Listener
}

// conn is a TCP connection, by who has dialled it.
type conn struct {
	pair
	port uint16 // of who has dialled
}

// outcome is what becomes of the packets of a connection.
type outcome int

const (
	passes outcome = iota
	isReset
	stalls
	isHalfOpen
)

// flight is a packet on its way.
type flight struct {
	due    time.Time
	number uint64
	to     int
	bytes  []byte
}

// inFlight is a heap: the earliest is the first.
type inFlight []flight

func (f inFlight) Len() int { return len(f) }
func (f inFlight) Less(i, j int) bool {
	return f[i].due.Before(f[j].due) || f[i].due.Equal(f[j].due) && f[i].number < f[j].number
}
func (f inFlight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *inFlight) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *inFlight) Pop() any {
	old := *f
	last := old[len(old)-1]
	*f = old[:len(old)-1]
	return last
}

// newPackets makes namespaces for nodes and clients, and starts to carry their packets. listens
// are the ports on which nodes are dialled.
func newPackets(l *Links, nodes int, listens ...uint16) (*packets, error) {
	p := &packets{
		links: l, listens: map[uint16]bool{}, refused: map[pair]bool{}, conns: map[conn]outcome{},
		more: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	for _, port := range listens {
		p.listens[port] = true
	}
	for number := range nodes + 1 {
		n, err := newNamespace(hostAddress(number))
		if err != nil {
			p.close()
			return nil, err
		}
		p.hosts = append(p.hosts, n)
	}
	for number := range p.hosts {
		l.start(func() { p.read(number) })
	}
	l.start(p.release)
	return p, nil
}

// read takes the packets that come from a host.
func (p *packets) read(from int) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := p.hosts[from].tunnel.Read(buffer)
		if err != nil {
			return
		}
		if to, ok := destination(buffer[:n]); ok && to >= 0 && to < len(p.hosts) && to != from {
			p.carry(from, to, buffer[:n])
		}
	}
}

// destination returns the number of the host to which a packet goes.
func destination(packet []byte) (int, bool) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return 0, false
	}
	return int(packet[19]) - 1, true
}

// carry lets a packet arrive, at once or later, or loses it.
func (p *packets) carry(from, to int, packet []byte) {
	if !p.passes(from, to, packet) {
		return
	}
	way := p.links.ways[pair{from, to}]
	shape, _ := way.state()
	if shape.Cut || shape.Loss > 0 && rand.Float64() < shape.Loss {
		return
	}
	now := time.Now()
	due := now
	if shape.Reorder == 0 || rand.Float64() >= shape.Reorder {
		due = due.Add(shape.late())
	}
	if shape.Rate > 0 {
		if way.backlog() > longestQueue {
			return
		}
		due = due.Add(way.reserve(len(packet)).Sub(now))
	}
	if !due.After(now) {
		_, _ = p.hosts[to].tunnel.Write(packet)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	heap.Push(&p.waiting, flight{due, p.number, to, append([]byte(nil), packet...)})
	if p.waiting[0].number == p.number {
		select {
		case p.more <- struct{}{}:
		default:
		}
	}
}

// release lets packets arrive when they are due.
func (p *packets) release() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p.mu.Lock()
		for len(p.waiting) > 0 && !p.waiting[0].due.After(time.Now()) {
			f := heap.Pop(&p.waiting).(flight)
			_, _ = p.hosts[f.to].tunnel.Write(f.bytes)
		}
		next := time.Hour
		if len(p.waiting) > 0 {
			next = time.Until(p.waiting[0].due)
		}
		p.mu.Unlock()
		timer.Reset(next)
		select {
		case <-p.closed:
			return
		case <-p.more:
		case <-timer.C:
		}
	}
}

// passes reports whether a packet is carried at all. If its connection is to be reset, the
// sender is told so.
func (p *packets) passes(from, to int, packet []byte) bool {
	c, dialled, opens, ok := p.connOf(from, to, packet)
	if !ok {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if opens {
		p.conns[c] = passes
	}
	switch state := p.conns[c]; {
	case p.refused[c.pair], state == isReset, state == isHalfOpen && !dialled:
		if answer := resetFor(packet); answer != nil {
			_, _ = p.hosts[from].tunnel.Write(answer)
		}
		return false
	case state == stalls, state == isHalfOpen:
		return false
	}
	if _, known := p.conns[c]; !known {
		p.conns[c] = passes
	}
	return true
}

// connOf finds the TCP connection of a packet: dialled says whether the sender has dialled it,
// opens whether this is its first packet.
func (p *packets) connOf(from, to int, packet []byte) (c conn, dialled, opens, ok bool) {
	segment := tcpOf(packet)
	if segment == nil {
		return c, false, false, false
	}
	source, target := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint16(segment[2:])
	switch {
	case p.listens[target]:
		return conn{pair{from, to}, source}, true, segment[13]&(tcpSYN|tcpACK) == tcpSYN, true
	case p.listens[source]:
		return conn{pair{to, from}, target}, false, false, true
	}
	return c, false, false, false
}

func (p *packets) refuse(which pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[which] = true
}

func (p *packets) reset(which pair) { p.decide(which, isReset) }

func (p *packets) stall(which pair, half bool) {
	if half {
		p.decide(which, isHalfOpen)
	} else {
		p.decide(which, stalls)
	}
}

func (p *packets) decide(which pair, o outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.pair == which {
			p.conns[c] = o
		}
	}
}

func (p *packets) heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.refused)
	for c, o := range p.conns {
		switch o {
		case stalls:
			p.conns[c] = passes
		case isHalfOpen:
			p.conns[c] = isReset
		}
	}
	return nil
}

// forwardTo lets this process's own namespace reach a port: connections to here go to an
// address that is dialled from a host.
func (p *packets) forwardTo(from *namespace, here, there string) error {
	l, err := net.Listen("tcp", here)
	if err != nil {
		return err
	}
	p.forward = append(p.forward, l)
	p.links.start(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				to, err := from.dial(there)
				if err != nil {
					reset(c)
					return
				}
				var both sync.WaitGroup
				for _, ends := range [][2]net.Conn{{c, to}, {to, c}} {
					both.Go(func() {
						_, _ = io.Copy(ends[0], ends[1])
						_, _ = ends[0].Close(), ends[1].Close()
					})
				}
				both.Wait()
			}()
		}
	})
	return nil
}

func (p *packets) close() {
	close(p.closed)
	for _, l := range p.forward {
		_ = l.Close()
	}
	for _, n := range p.hosts {
		_ = n.close()
	}
}

// Flags of TCP.
const (
	tcpFIN, tcpSYN, tcpRST, tcpACK = 1, 2, 4, 16
)

// tcpOf returns the TCP segment of a packet; nil: it has none.
func tcpOf(packet []byte) []byte {
	const tcp = 6
	if len(packet) < 40 || packet[9] != tcp {
		return nil
	}
	header := int(packet[0]&15) * 4
	if len(packet) < header+20 {
		return nil
	}
	return packet[header:]
}

// resetFor returns the packet that resets the connection for the sender of another one, as
// if it came from where that one goes; nil: nothing is to be answered.
func resetFor(packet []byte) []byte {
	in := tcpOf(packet)
	if in == nil || in[13]&tcpRST != 0 {
		return nil
	}
	out := make([]byte, 40)
	out[0], out[8], out[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	copy(out[12:16], packet[16:20])
	copy(out[16:20], packet[12:16])
	binary.BigEndian.PutUint16(out[10:], ^sum16(0, out[:20]))
	segment := out[20:]
	copy(segment[0:2], in[2:4])
	copy(segment[2:4], in[0:2])
	segment[12] = 5 << 4
	if in[13]&tcpACK != 0 {
		copy(segment[4:8], in[8:12])
		segment[13] = tcpRST
	} else {
		length := uint32(len(in) - int(in[12]>>4)*4)
		if in[13]&tcpSYN != 0 {
			length++
		}
		if in[13]&tcpFIN != 0 {
			length++
		}
		binary.BigEndian.PutUint32(segment[8:], binary.BigEndian.Uint32(in[4:])+length)
		segment[13] = tcpRST | tcpACK
	}
	pseudo := sum16(0, out[12:20])
	pseudo = sum16(pseudo, []byte{0, 6, 0, byte(len(segment))})
	binary.BigEndian.PutUint16(segment[16:], ^sum16(pseudo, segment))
	return out
}

// sum16 adds to a sum of 16-bit words in ones' complement.
func sum16(sum uint16, bytes []byte) uint16 {
	total := uint32(sum)
	for i := 0; i+1 < len(bytes); i += 2 {
		total += uint32(binary.BigEndian.Uint16(bytes[i:]))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
