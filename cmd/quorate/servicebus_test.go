package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/proto/logpb"
)

// A description is read once for each row that an entity has had, and one that is gone is none.
func TestDescriptions(t *testing.T) {
	var ds descriptions
	row := func(size int64) *logpb.Describe {
		q := entity.NewQueue()
		q.MaxSizeInMegabytes = size
		text, err := (&entity.Description{Path: entity.Path{Name: "q"}, Queue: q}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		return &logpb.Describe{Text: text}
	}
	first := row(1024)
	a, _ := ds.of("q", first)
	if again, ok := ds.of("q", first); !ok || again != a {
		t.Errorf("read again: %p, %p", again, a)
	}
	if b, ok := ds.of("q", row(2048)); !ok || b.Queue.MaxSizeInMegabytes != 2048 {
		t.Errorf("of the new row: %+v", b)
	}
	if other, ok := ds.of("other", first); !ok || other.Queue.MaxSizeInMegabytes != 1024 {
		t.Errorf("of another entity: %+v", other)
	}
	if gone, ok := ds.of("q", nil); ok {
		t.Errorf("of none: %+v", gone)
	}
	if _, ok := ds.byKey.Load("q"); ok {
		t.Error("what is gone is kept")
	}
	if bad, ok := ds.of("q", &logpb.Describe{Text: []byte("{")}); ok {
		t.Errorf("of a bad row: %+v", bad)
	}
}

// One port takes TLS and what is not.
func TestEitherProtocol(t *testing.T) {
	dir := t.TempDir()
	files := tlsFiles{cert: filepath.Join(dir, "c.pem"), key: filepath.Join(dir, "k.pem")}
	for range 2 { // the second time it is there
		if err := writeLoopbackCertificate(files.cert, files.key); err != nil {
			t.Fatal(err)
		}
	}
	config, err := files.config(tlsVersions{tls.VersionTLS12, tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })}
	served := make(chan error)
	go func() { served <- server.Serve(either{l, config}) }()
	pool, err := readRoots(files.cert)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	for _, scheme := range []string{"http", "https"} {
		res, err := client.Get(scheme + "://" + l.Addr().String() + "/" + scheme)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != "/"+scheme || err != nil {
			t.Errorf("%s: %q, %v", scheme, body, err)
		}
	}
	client.CloseIdleConnections()
	server.Close()
	if err := <-served; err != http.ErrServerClosed {
		t.Error(err)
	}
}

func TestServiceBusSettings(t *testing.T) {
	s := defaults()
	for key, value := range map[string]string{"servicebus.management.listener": "5300", namespacesKey + "Bus.Example": "orders", "servicebus.hosts": "A, b"} {
		if err := s.put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	if s.bus.management != ":5300" || s.bus.namespaces["bus.example"] != "orders" || len(s.bus.hosts) != 2 || s.bus.hosts[0] != "a" || s.namespace() != "/" {
		t.Errorf("%+v", s.bus)
	}
	if err := s.put("servicebus.vhost", "v"); err != nil || s.namespace() != "v" || len(s.namespaceVHosts()) != 2 {
		t.Errorf("%+v, %v", s.bus, err)
	}
	if f, err := s.readBusFile(); f != nil || err != nil {
		t.Error(f, err)
	}
	if err := s.put(busFileSetting, filepath.Join(t.TempDir(), "none.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.readBusFile(); err == nil {
		t.Error("a file that is not there")
	}
}
