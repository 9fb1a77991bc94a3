package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
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
	if l.peers, err = listenWithin(c.bound("clustering", s.maxLinks, c.descriptors.Links, limit.Config{}), s.peers); err != nil {
		return l, err
	}
	for _, x := range []struct {
		to            *[]socket
		plain, secure string
		files         tlsFiles
		prefix        string // of the TLS settings
		limiter       allotment
	}{
		{&l.management, s.management, s.managementTLS.address(), s.managementTLS.or(s.tls), "management.ssl", allotment{"http", "https", s.maxHTTP, c.descriptors.HTTP, limit.Config{Logins: true, Answer: tooManyRequests}}},
		{&l.metrics, s.metrics, s.metricsTLS.address(), s.metricsTLS.or(s.tls), "prometheus.ssl", allotment{"http/prometheus", "https/prometheus", s.maxScrapers, c.descriptors.Metrics, limit.Config{Answer: tooManyRequests}}},
		{&l.clients, s.amqp, s.amqps, s.tls, "ssl_options", allotment{"amqp", "amqp/ssl", 0, c.descriptors.Clients, limit.Config{Logins: true}}},
	} {
		var config *tls.Config
		if x.secure != "" {
			if config, err = x.files.config(s.tlsVersions); err != nil {
				l.close()
				return l, fmt.Errorf("settings %s: %w", x.prefix, err)
			}
		}
		if *x.to, err = c.listenBoth(x.plain, x.secure, config, x.limiter); err != nil {
			l.close()
			return l, err
		}
	}
	return l, nil
}

// listenBoth opens a plain listener and a TLS listener; an empty address means none.
func (c *limits) listenBoth(plain, secure string, config *tls.Config, b allotment) (sockets []socket, err error) {
	if plain != "" && secure != "" {
		b.setting, b.share = (b.setting+1)/2, b.share/2
	}
	for _, x := range []struct {
		address string
		config  *tls.Config
	}{{plain, nil}, {secure, config}} {
		if x.address == "" {
			continue
		}
		w, err := listenAt(x.address, x.config, c.limiter(b, x.config != nil))
		if err != nil {
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

// describe lists the listeners, as operators see them.
func (l listeners) describe() []api.Listener {
	all := []api.Listener{{Protocol: "clustering", Address: l.peers.Addr().String()}}
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
			all = append(all, api.Listener{Protocol: protocol, Address: w.address})
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
