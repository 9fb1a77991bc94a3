package cluster

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
)

// movedBy is how far the ports of a node are moved that gets another address.
const movedBy = 5

// Move gives a node that is stopped another loopback address and other ports, which it has from its
// next start on. The lists of the other nodes stay as they are.
func (c *Cluster) Move(n *Node, host string) {
	at := func(listener int) string {
		return net.JoinHostPort(host, strconv.Itoa(c.base+portOffsets[listener]+n.Number-1+movedBy))
	}
	n.AMQP, n.HTTP = at(0), at(1)
	n.Command += listenersAt(at(0), at(1), at(2), at(3)) + fmt.Sprintf("'--set=cluster_formation.classic_config.nodes.%d=%s@%s' ", n.Number, nodeName(n.Number), at(3))
}

func listenersAt(amqp, http, metrics, peers string) string {
	return fmt.Sprintf(" '--set=listeners.tcp.default=%s' '--set=management.tcp.listener=%s' '--set=prometheus.tcp.listener=%s' '--set=cluster.listener=%s' ", amqp, http, metrics, peers)
}

// Pretend starts a node that has the name, the command line and the address for other nodes of a
// stopped one, but an empty data folder and a certificate of another authority. Clients reach it at
// another loopback address. It is not among the cluster's nodes.
func (c *Cluster) Pretend(n *Node, host string) (*Node, error) {
	dir := filepath.Join(c.dir, "pretends")
	authority, err := NewAuthority(filepath.Join(dir, "data", certsFolder))
	if err != nil {
		return nil, err
	}
	name := nodeName(n.Number)
	if err := authority.CertifyNode(name); err != nil {
		return nil, err
	}
	other := &Cluster{dir: dir}
	at := func(listener int) string {
		return net.JoinHostPort(host, strconv.Itoa(c.base+portOffsets[listener]+n.Number-1))
	}
	p := &Node{Number: n.Number, AMQP: at(0), HTTP: at(1), dir: dir}
	p.Command = n.Command + listenersAt(at(0), at(1), at(2), c.at(3, n.Number)) +
		fmt.Sprintf("'--data-dir' '%s' '--set=log.file=%s' ", p.DataDir(), filepath.Join(p.DataDir(), "quorate.log"))
	for _, setting := range other.certificateOf(name) {
		p.Command += "'" + setting + "' "
	}
	return p, p.Restart()
}
