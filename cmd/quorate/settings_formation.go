package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/membership"
)

// linksPort is the usual port of cluster.listener.
const linksPort = "25672"

// formation is what a rabbitmq.conf says about how its nodes find each other; see form.
type formation struct {
	backend string // k8s, dns, or empty: the list of nodes
	size    int    // of the cluster; 0: not known
	first   int    // number of the first pod
	service string
	suffix  string
	domain  string
	unnamed []string // hosts of nodes of the peer's usual name
}

// setNode takes NAME@HOST:PORT. A node of the peer, rabbit@HOST, is called as its host.
func setNode(s *settings, v string) error {
	name, at, ok := strings.Cut(v, "@")
	if ok && !strings.Contains(at, ":") {
		at = net.JoinHostPort(at, linksPort)
	}
	host, _, err := net.SplitHostPort(at)
	if !ok || name == "" || host == "" || err != nil {
		return fmt.Errorf("%q is neither NAME@HOST:PORT nor NAME@HOST", v)
	}
	if old, ok := s.nodeOf[s.key]; ok {
		delete(s.nodes, old) // a later value replaces an earlier one
	}
	if name == "rabbit" {
		name = host
		s.formation.unnamed = append(s.formation.unnamed, host)
	}
	if _, twice := s.nodes[name]; twice {
		return fmt.Errorf("node %q is in the list twice", name)
	}
	s.nodes[name], s.nodeOf[s.key] = at, name
	return nil
}

// setDiscovery takes the ways of finding nodes that exist here.
func setDiscovery(s *settings, _, v string) error {
	switch backend := strings.TrimPrefix(v, "rabbit_peer_discovery_"); backend {
	case "classic_config":
		s.formation.backend = ""
	case "k8s", "kubernetes":
		s.formation.backend = "k8s"
	case "dns":
		s.formation.backend = "dns"
	default:
		return fmt.Errorf("%q is not one of classic_config, k8s, dns: list the nodes, or use cluster_formation.join", v)
	}
	return nil
}

func formationText(field func(*formation) *string) func(*settings, string, string) error {
	return func(s *settings, _, v string) error {
		*field(&s.formation) = v
		return nil
	}
}

func formationNumber(low, high int, field func(*formation) *int) func(*settings, string, string) error {
	set := number(low, high, func(s *settings) *int { return field(&s.formation) })
	return func(s *settings, _, v string) error { return set(s, v) }
}

var (
	sizeHint     = formationNumber(1, 64, func(f *formation) *int { return &f.size })
	ordinalStart = formationNumber(0, 1_000_000, func(f *formation) *int { return &f.first })
)

// form makes a list of nodes, or contacts, of what a rabbitmq.conf says about them. What is listed or joined
// by settings of quorate's own applies in its place.
func (s *settings) form() error {
	f := &s.formation
	_, named := s.given["node_name"]
	switch {
	case len(s.contacts) > 0:
		return nil
	case len(s.nodes) > 0:
		if len(f.unnamed) == 0 || named {
			return nil
		}
		host, err := s.hostName()
		short, _, _ := strings.Cut(host, ".")
		for _, name := range []string{host, short} {
			if slices.Contains(f.unnamed, name) {
				s.nodeName = name
				break
			}
		}
		return err
	case f.backend == "dns":
		if f.domain == "" {
			return errors.New("setting cluster_formation.peer_discovery_backend: dns needs cluster_formation.dns.hostname")
		}
		s.contacts = []string{net.JoinHostPort(f.domain, linksPort)}
		s.warn("cluster_formation.dns.hostname", "is a name to join", "a new node waits for a running one there; found the cluster by cluster_formation.classic_config.nodes")
		return nil
	case f.backend == "k8s":
		return s.formPods(named)
	}
	return nil
}

// formPods lists the pods of a stateful set, which are called by their numbers.
func (s *settings) formPods(named bool) error {
	f := &s.formation
	host, err := s.hostName()
	if err != nil {
		return err
	}
	pod, _, _ := strings.Cut(host, ".")
	at := strings.LastIndexByte(pod, '-')
	if _, err := strconv.Atoi(pod[at+1:]); at < 1 || err != nil {
		return fmt.Errorf("setting cluster_formation.peer_discovery_backend: k8s needs a host with the name of a pod of a stateful set, NAME-NUMBER: this one is called %q", host)
	}
	if f.size == 0 {
		return errors.New("setting cluster_formation.peer_discovery_backend: k8s needs cluster_formation.target_cluster_size_hint, the number of pods: the list of nodes follows from it")
	}
	suffix := cmp.Or(f.suffix, os.Getenv("K8S_HOSTNAME_SUFFIX"))
	if service := cmp.Or(f.service, os.Getenv("K8S_SERVICE_NAME")); suffix == "" && service != "" {
		suffix = "." + service
	}
	for k := f.first; k < f.first+f.size; k++ {
		name := pod[:at+1] + strconv.Itoa(k)
		s.nodes[name] = net.JoinHostPort(name+suffix, linksPort)
	}
	if !named {
		s.nodeName = pod
	}
	return nil
}

// checkGuest refuses to found a cluster that anybody could enter. Who wants that gives the password, too.
func (s *settings) checkGuest() error {
	if s.user != "guest" || s.password != "guest" || slices.Contains(s.loopbackUsers, "guest") {
		return nil
	}
	if _, said := s.given["default_pass"]; said {
		return nil
	}
	if _, err := os.Stat(filepath.Join(s.dataDir, membership.CatalogFolder)); err == nil {
		return nil // its users are those of the catalog
	}
	for _, at := range append(append(s.amqp.addresses(), s.amqps.addresses()...), s.management, s.managementTLS.address()) {
		if at != "" && !onLoopback(at) {
			return fmt.Errorf("setting loopback_users: guest could log in with its default password from other hosts, at %s: set default_pass, or add guest to the list; default_pass = guest accepts the risk", at)
		}
	}
	return nil
}
