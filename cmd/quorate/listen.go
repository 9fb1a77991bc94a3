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

// listeners are the node's ways in.
type listeners struct {
	peers               net.Listener
	management, metrics []way
	clients             []way
	limits              *limits
}

// listen opens all ways in, or none.
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
		to            *[]way
		plain, secure string
		files         tlsFiles
		prefix        string // of the settings of TLS
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

// listenBoth opens a plain way and one by TLS; an empty address is none.
func (c *limits) listenBoth(plain, secure string, config *tls.Config, b allotment) (ways []way, err error) {
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
			for i := range ways {
				ways[i].shut()
			}
			return nil, err
		}
		ways = append(ways, w)
	}
	return ways, nil
}

func (l listeners) close() {
	if l.peers != nil {
		l.peers.Close()
	}
	for _, ways := range [][]way{l.management, l.metrics, l.clients} {
		for i := range ways {
			ways[i].shut()
		}
	}
}

// describe lists the ways in, as operators see them.
func (l listeners) describe() []api.Listener {
	all := []api.Listener{{Protocol: "clustering", Address: l.peers.Addr().String()}}
	for _, x := range []struct {
		ways          []way
		plain, secure string
	}{
		{l.management, "http", "https"}, {l.metrics, "http/prometheus", "https/prometheus"}, {l.clients, "amqp", "amqp/ssl"},
	} {
		for _, w := range x.ways {
			protocol := x.plain
			if w.tls != nil {
				protocol = x.secure
			}
			all = append(all, api.Listener{Protocol: protocol, Address: w.address})
		}
	}
	return all
}

// addresses lists where ways lead from.
func addresses(ways []way) string {
	var all []string
	for _, w := range ways {
		all = append(all, w.address)
	}
	return strings.Join(all, " ")
}
