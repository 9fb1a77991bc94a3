// Package discovery finds nodes by names in DNS: host names with several addresses, and SRV names.
// Nothing is remembered between two questions, so what DNS says counts at the next attempt.
//
// An address found so proves nothing: who answers there proves by its certificate and its data
// folder which node it is, see package membership.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxAddresses bounds what one contact stands for. What DNS lists beyond it is not used.
	maxAddresses = 64
	// lookupWait bounds one question to the system's resolver.
	lookupWait = 3 * time.Second
	// connectWait bounds the attempt to connect to one of several addresses.
	connectWait = 2 * time.Second
	// maxNames bounds the names whose order a Finder remembers.
	maxNames = 1024
)

// srvPrefix marks a contact that is an SRV name.
const srvPrefix = "srv:"

// CheckContact says why a contact is neither HOST:PORT nor srv:NAME; nil: it is one of them.
func CheckContact(contact string) error {
	if name, ok := strings.CutPrefix(contact, srvPrefix); ok {
		if name == "" || strings.ContainsAny(name, ":/ ") {
			return fmt.Errorf("%q is not srv:NAME", contact)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(contact)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q is neither HOST:PORT nor srv:NAME", contact)
	}
	return nil
}

// Finder finds the addresses of contacts and connects to nodes.
type Finder struct {
	// Resolver answers questions; nil: the system's.
	Resolver *net.Resolver

	mu sync.Mutex
	// firsts says which address of a name with several is tried first. Names with one have none.
	firsts map[string]int
}

// New returns a Finder that asks the system's resolver.
func New() *Finder { return &Finder{} }

func (f *Finder) resolver() *net.Resolver {
	if f.Resolver == nil {
		return net.DefaultResolver
	}
	return f.Resolver
}

// Addresses returns what a contact stands for now, as IP:PORT: every address of its host, and for an
// SRV name those of its targets, in the order of their priorities. If some targets have no address
// it returns those of the others.
func (f *Finder) Addresses(ctx context.Context, contact string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	name, isService := strings.CutPrefix(contact, srvPrefix)
	if !isService {
		host, port, err := net.SplitHostPort(contact)
		if err != nil {
			return nil, err
		}
		return f.lookup(ctx, host, port)
	}
	_, targets, err := f.resolver().LookupSRV(ctx, "", "", name)
	if len(targets) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s: DNS has no SRV targets", contact))
	}
	var found []string
	var errs []error
	for _, t := range targets {
		all, err := f.lookup(ctx, t.Target, strconv.Itoa(int(t.Port)))
		found, errs = append(found, all...), append(errs, err)
	}
	if len(found) == 0 {
		return nil, errors.Join(errs...)
	}
	return found[:min(len(found), maxAddresses)], nil
}

// lookup returns the addresses of a host, each with the port.
func (f *Finder) lookup(ctx context.Context, host, port string) ([]string, error) {
	ips, err := f.resolver().LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, ip := range ips[:min(len(ips), maxAddresses)] {
		found = append(found, net.JoinHostPort(ip.Unmap().String(), port))
	}
	return found, nil
}

// Dial connects to HOST:PORT. If the host has several addresses they are tried one after the other,
// at most connectWait each, and each call begins with another one: who answers at the first may not
// be the node that is meant. The error wraps syscall.ECONNREFUSED only if all have refused.
func (f *Finder) Dial(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return dialer.DialContext(ctx, "tcp", address)
	}
	all, err := f.lookup(ctx, host, port)
	if err != nil {
		return nil, err
	}
	if len(all) == 1 {
		return dialer.DialContext(ctx, "tcp", all[0])
	}
	first := f.next(host, len(all))
	var errs []error
	refused := 0
	for i := range all {
		one, cancel := context.WithTimeout(ctx, connectWait)
		conn, err := dialer.DialContext(one, "tcp", all[(first+i)%len(all)])
		cancel()
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err = errors.Join(errs...); refused < len(all) {
		return nil, fmt.Errorf("no address of %s answered: %v", host, err) // without %w: a refusal among them proves nothing
	}
	return nil, err
}

// next returns the address of a name, of n, to begin with.
func (f *Finder) next(host string, n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.firsts == nil || len(f.firsts) >= maxNames {
		f.firsts = map[string]int{}
	}
	first := f.firsts[host] % n
	f.firsts[host] = first + 1
	return first
}
