package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// listeners are the node's ways in.
type listeners struct {
	peers               net.Listener
	management, metrics []way
	clients             []way
}

// listen opens all ways in, or none.
func listen(s *settings) (l listeners, err error) {
	if l.peers, err = net.Listen("tcp", s.peers); err != nil {
		return l, err
	}
	for _, x := range []struct {
		to            *[]way
		plain, secure string
		files         tlsFiles
		prefix        string // of the settings of TLS
	}{
		{&l.management, s.management, s.managementTLS.address(), s.managementTLS.or(s.tls), "management.ssl"},
		{&l.metrics, s.metrics, s.metricsTLS.address(), s.metricsTLS.or(s.tls), "prometheus.ssl"},
		{&l.clients, s.amqp, s.amqps, s.tls, "ssl_options"},
	} {
		var config *tls.Config
		if x.secure != "" {
			if config, err = x.files.config(s.tlsVersions); err != nil {
				l.close()
				return l, fmt.Errorf("settings %s: %w", x.prefix, err)
			}
		}
		if *x.to, err = listenBoth(x.plain, x.secure, config); err != nil {
			l.close()
			return l, err
		}
	}
	return l, nil
}

// listenBoth opens a plain way and one by TLS; an empty address is none.
func listenBoth(plain, secure string, config *tls.Config) (ways []way, err error) {
	for _, x := range []struct {
		address string
		config  *tls.Config
	}{{plain, nil}, {secure, config}} {
		if x.address == "" {
			continue
		}
		w, err := listenAt(x.address, x.config)
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
