package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/certs"
)

// CF-3: the variables of the emulator's image, of which some have no effect.
func TestVariablesOfTheEmulator(t *testing.T) {
	given := map[string]string{"ACCEPT_EULA": "Y", "SQL_SERVER": "sql", "MSSQL_SA_PASSWORD": "secret", "EMULATOR_HTTP_PORT": "5301", "CONFIG_PATH": "/c.json"}
	dir := t.TempDir()
	file := filepath.Join(dir, "quorate.conf")
	if err := os.WriteFile(file, []byte("data_dir = "+dir+"\nlisteners.tcp.default = 5672\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := loadOver(file, emulatorSettings(func(name string) string { return given[name] }), []string{"servicebus.root_key=own"})
	if err != nil {
		t.Fatal(err)
	}
	b := &s.bus
	if b.management != ":5301" || b.file != "/c.json" || b.defaults != "emulator" || b.rootKey != "own" || len(s.amqp) != 0 || !slices.Equal(b.amqp.addresses(), []string{":5672"}) {
		t.Errorf("%+v, %v", b, s.amqp)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var files tlsFiles
	for range 2 {
		if files, err = ownCertificate(dir); err != nil {
			t.Fatal(err)
		}
	}
	have, err := certs.List(files.cert)
	if err != nil || have[0].Certificate.VerifyHostname(host) != nil || have[0].Certificate.VerifyHostname("127.0.0.1") != nil {
		t.Error(have, err)
	}
	t.Setenv("QUORATE_SERVICEBUS_MANAGEMENT_LISTENER", "127.0.0.1:9")
	if s, err := loadOver("", emulatorSettings(func(string) string { return "" }), nil); err != nil || s.bus.management != "127.0.0.1:9" || s.bus.rootKey != devBusKey {
		t.Errorf("%+v, %v", s, err)
	}
}

// The compose file starts the image as the emulator, with its variables and with a file where it looks for one.
func TestEmulatorIsDeployed(t *testing.T) {
	at := filepath.Join("..", "..", "deploy", "servicebus")
	compose, err := os.ReadFile(filepath.Join(at, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`command: \[server, --service-bus-emulator\]`, regexp.QuoteMeta(`./config.json}:`+emulatorFile) + `:ro`, `ports: \["5672:5672", "5300:5300"\]`, `ACCEPT_EULA: "Y"`, `EMULATOR_HTTP_PORT: 5300`} {
		if !regexp.MustCompile(want).Match(compose) {
			t.Errorf("compose.yaml has no %s", want)
		}
	}
	s := defaults()
	s.bus.file, s.bus.defaults = filepath.Join(at, "config.json"), "emulator"
	f, err := s.readBusFile()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range f.Entities {
		names = append(names, d.Path.String())
	}
	if got := strings.Join(names, " "); !strings.HasPrefix(got, "queue.1 queue.sessions topic.1 topic.1/Subscriptions/subscription.1") || len(f.Rules) != 4 {
		t.Error(got, f.Rules)
	}
}
