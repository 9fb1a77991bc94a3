package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// healthWait bounds a health check, and maxCheck is the most that is read of its answer, in bytes.
const (
	healthWait = 5 * time.Second
	maxCheck   = 64 << 10
)

// healthCommand asks the node that runs with these settings on this host how it is. It needs no user,
// and no other program, so it can be the health check of a container.
func healthCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quorate health", flag.ContinueOnError)
	flags.SetOutput(out)
	file := flags.String("config", "", "`file` of settings that the node was started with")
	alive := flags.Bool("alive", false, "fail only if the process should be restarted, not if it is merely unable to serve clients")
	var sets list
	flags.Var(&sets, "set", "a setting that the node was started with, `KEY=VALUE`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("health: unexpected argument %q", flags.Arg(0))
	}
	s, err := load(*file, sets)
	if err != nil {
		return err
	}
	check := "ready-to-serve-clients"
	if *alive {
		check = "is-alive"
	}
	ctx, cancel := context.WithTimeout(context.Background(), healthWait)
	defer cancel()
	if err := s.askHealth(ctx, check); err != nil {
		return err
	}
	fmt.Fprintln(out, "ok")
	return nil
}

// askHealth makes a health check at the node's own HTTP listener: the plain one if it has one, since
// nothing secret is sent.
func (s *settings) askHealth(ctx context.Context, check string) error {
	at, scheme := s.management, "http"
	way := &http.Transport{DisableKeepAlives: true}
	if at == "" {
		at, scheme = s.managementTLS.address(), "https"
		config, err := s.managementTLS.or(s.tls).ownClient()
		if err != nil {
			return err
		}
		way.TLSClientConfig = config
	}
	if at == "" {
		return errors.New("the node has no HTTP listener (settings management.tcp.listener, management.ssl.port)")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+reachable(at)+"/api/health/checks/"+check, nil)
	if err != nil {
		return err
	}
	res, err := way.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("the node does not answer: %w", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxCheck))
	if err != nil {
		return fmt.Errorf("the node's answer was cut off: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var c api.Check
	if json.Unmarshal(raw, &c) != nil || c.Reason == "" {
		return fmt.Errorf("the node answers %s", res.Status)
	}
	return errors.New(c.Reason)
}

// reachable is the address at which this host reaches a listener.
func reachable(listener string) string {
	host, port, err := net.SplitHostPort(listener)
	switch ip := net.ParseIP(host); {
	case err != nil:
		return listener
	case host == "" || ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip.Equal(net.IPv6unspecified):
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

var errOtherCertificate = errors.New("the listener does not present the certificate in the node's settings")

// ownClient configures a client of the listener that these files are for. Whatever names its
// certificate holds, it must be the one in the files, which is also the client's.
func (f tlsFiles) ownClient() (*tls.Config, error) {
	if f.cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		InsecureSkipVerify: true, // by names and authorities; the certificate itself is compared
		VerifyConnection: func(c tls.ConnectionState) error {
			if !bytes.Equal(c.PeerCertificates[0].Raw, pair.Certificate[0]) {
				return errOtherCertificate
			}
			return nil
		},
	}, nil
}
