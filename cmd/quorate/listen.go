package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/mgmt/api"
)

// listeners are the node's listening sockets.
type listeners struct {
	peers               net.Listener
	management, metrics []socket
	clients             []socket
	limits              *limits
}

// listen opens all sockets, or none.
func listen(s *settings, logger *slog.Logger) (l listeners, err error) {
	c, err := newLimits(logger)
	if err != nil {
		return l, err
	}
	l.limits = c
	if l.peers, err = listenWithin(c.bound("clustering", s.maxLinks, c.descriptors.Links, limit.Config{}), "tcp", s.peers); err != nil {
		return l, err
	}
	for _, x := range []struct {
		to            *[]socket
		plain, secure []string
		files         tlsFiles
		prefix        string // of the TLS settings
		limiter       allotment
	}{
		{&l.management, some(s.management), some(s.managementTLS.address()), s.managementTLS.or(s.tls), "management.ssl", allotment{"http", "https", s.maxHTTP, c.descriptors.HTTP, limit.Config{Logins: true, Answer: tooManyRequests}}},
		{&l.metrics, some(s.metrics), some(s.metricsTLS.address()), s.metricsTLS.or(s.tls), "prometheus.ssl", allotment{"http/prometheus", "https/prometheus", s.maxScrapers, c.descriptors.Metrics, limit.Config{Answer: tooManyRequests}}},
		{&l.clients, s.amqp.addresses(), s.amqps.addresses(), s.tls, "ssl_options", allotment{"amqp", "amqp/ssl", 0, c.descriptors.Clients, limit.Config{Logins: true}}},
	} {
		var config *tls.Config
		if len(x.secure) > 0 {
			if config, err = x.files.config(s.tlsVersions); err != nil {
				l.close()
				return l, fmt.Errorf("settings %s: %w", x.prefix, err)
			}
		}
		if *x.to, err = c.listenAll(x.plain, x.secure, config, x.limiter); err != nil {
			l.close()
			return l, err
		}
	}
	return l, nil
}

// some is a list of an address, unless that is empty.
func some(address string) []string {
	if address == "" {
		return nil
	}
	return []string{address}
}

// listenAll opens plain listeners and TLS listeners. They share the allotment in equal parts.
func (c *limits) listenAll(plain, secure []string, config *tls.Config, b allotment) (sockets []socket, err error) {
	if n := len(plain) + len(secure); n > 1 {
		b.setting, b.share = (b.setting+n-1)/n, b.share/n
	}
	// Each of several is for the family of its address: all addresses of IPv6 would take those of IPv4 as well.
	network := func(address string) string {
		host, _, _ := net.SplitHostPort(address)
		switch ip := net.ParseIP(host); {
		case len(plain)+len(secure) == 1 || ip == nil:
			return "tcp"
		case ip.To4() != nil:
			return "tcp4"
		default:
			return "tcp6"
		}
	}
	for i, address := range append(slices.Clip(plain), secure...) {
		w := socket{network: network(address), address: address}
		if i >= len(plain) {
			w.tls = config
		}
		w.limiter = c.limiter(b, w.tls != nil)
		if err := w.listen(); err != nil {
			for i := range sockets {
				sockets[i].shut()
			}
			return nil, err
		}
		sockets = append(sockets, w)
	}
	return sockets, nil
}

func (l listeners) close() {
	if l.peers != nil {
		l.peers.Close()
	}
	for _, sockets := range [][]socket{l.management, l.metrics, l.clients} {
		for i := range sockets {
			sockets[i].shut()
		}
	}
}

// describe lists the listeners, as operators see them. links: other nodes are taken over TLS only.
func (l listeners) describe(links bool) []api.Listener {
	all := []api.Listener{{Protocol: "clustering", Address: l.peers.Addr().String(), TLS: links}}
	for _, x := range []struct {
		sockets       []socket
		plain, secure string
	}{
		{l.management, "http", "https"}, {l.metrics, "http/prometheus", "https/prometheus"}, {l.clients, "amqp", "amqp/ssl"},
	} {
		for _, w := range x.sockets {
			protocol := x.plain
			if w.tls != nil {
				protocol = x.secure
			}
			all = append(all, api.Listener{Protocol: protocol, Address: w.address, TLS: w.tls != nil})
		}
	}
	return all
}

// addresses lists the addresses of sockets.
func addresses(sockets []socket) string {
	var all []string
	for _, w := range sockets {
		all = append(all, w.address)
	}
	return strings.Join(all, " ")
}
