package clients

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// busHost is the address of the namespace for tests that know no ports but those of the service.
const busHost = "127.0.9.1"

// busModule is the SDK of Go, of the version of the program over it.
const busModule = "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

// busTests are the packages of the module that have tests, and busPassed is how many of those pass: 114 of the 119 that are
// skipped without a service, and those that need none.
var busTests = []string{".", "./admin", "./internal/..."}

const busPassed = 272

// busExceptions are tests that do not pass here, with what becomes of them and why. One that passes is none.
var busExceptions = map[string]struct{ outcome, why string }{
	"TestAdminClient_CreateQueue_Premium":            {"fail", "messages of 100 MB; here they have at most 32 MiB"},
	"TestAdminClient_TopicAndSubscription_Premium":   {"fail", "messages of 100 MB; here they have at most 32 MiB"},
	"TestNewClientWithWebsockets":                    {"fail", "AMQP over websockets, which is not spoken here"},
	"TestReceiveWithDelay/OnlySingleMessageReceived": {"skip", "needs a fault injector that is a program of its own"},
	"TestReceiveWithDelay/TwoMessagesExactly":        {"skip", "needs a fault injector that is a program of its own"},
	"TestReceiveWithDelay/AllTen":                    {"skip", "needs a fault injector that is a program of its own"},
	"TestReceiveWithDifferentWaitTime":               {"not run", "wants the service to pause among 1000 messages, which depends on the machine"},
}

// busLogins are the changes of the module: how its tests log in. Identities take a token service; here they have keys.
var busLogins = []struct{ file, old, new string }{
	{"internal/test/test_helpers.go", "\tif options.UseConnectionString {\n", "\toptions.UseConnectionString = true\n\tif options.UseConnectionString {\n"},
	{"internal/test/test_helpers.go", "\t\"github.com/Azure/azure-sdk-for-go/sdk/internal/test/credential\"\n", ""},
	{"internal/test/test_helpers.go", "\ttokenCred, err := credential.New(nil)\n\trequire.NoError(t, err)\n", ""},
	{"internal/test/test_helpers.go", "\t\tCred:            tokenCred,\n", ""},
	{
		"internal/test/test_helpers.go", "\tiv := GetIdentityVars(t)\n\n\tem, err := atom.NewEntityManager(iv.Endpoint, iv.Cred, \"\", nil)\n",
		"\tem, err := atom.NewEntityManagerWithConnectionString(GetConnectionString(t, EnvKeyConnectionString), \"\", nil)\n",
	},
	{
		"internal/amqpLinks_test.go", "\tiv := test.GetIdentityVars(t)\n\tns, err := NewNamespace(NamespaceWithTokenCredential(iv.Endpoint, iv.Cred))\n",
		"\tns, err := NewNamespace(NamespaceWithConnectionString(test.GetConnectionString(t, test.EnvKeyConnectionString)))\n",
	},
}

// TestServiceBusSuite runs the tests that ship with the SDK of Go, most of which are written for the service itself, against
// three nodes: with TLS, at the service's ports. Only how they log in is changed.
func TestServiceBusSuite(t *testing.T) {
	if !*suite {
		t.Skip("-clients.suite is not given")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	module := mustCopyBusModule(t, ctx)
	authority, certificate := mustCertify(t, busHost)
	args := []string{"--service-bus", "--set=servicebus.listeners.ssl.default=127.0.0.1:0", "--set=servicebus.message_kilobytes=256"}
	for _, prefix := range []string{"ssl_options", "servicebus.management"} {
		args = append(args, "--set="+prefix+".certfile="+certificate+".pem", "--set="+prefix+".keyfile="+certificate+".key")
	}
	b := &bus{Cluster: mustStart(t, ctx, args...), ctx: ctx}
	at := b.Nodes[0]
	mustForward(t, busHost+":5671", mustFindListener(t, ctx, at, "servicebus/ssl"))
	mustForward(t, busHost+":443", at.Manage)
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count", "1", "-p", "1", "-timeout", "20m", "-skip", "^(" + strings.Join(notRun(), "|") + ")$"}, busTests...)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), b.mustPrepareNamespace(t)...)
	// Whoever is looked for outside of this machine is not found at once.
	cmd.Env = append(cmd.Env, "GOWORK=off", "GOFLAGS=-mod=mod", "SSL_CERT_FILE="+authority, "HTTPS_PROXY=http://127.0.0.1:9", "AMQP_FAULT_INJECTOR_PATH=")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	results := readResults(t, out)
	compareResults(t, results)
	if len(results) == 0 || err != nil && !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("%v\n%s\n%s", err, complaints.String(), out[max(0, len(out)-4000):])
	}
}

func notRun() (names []string) {
	for name, x := range busExceptions {
		if x.outcome == "not run" {
			names = append(names, name)
		}
	}
	return names
}

// mustCopyBusModule copies the module, with what its tests need, and changes how they log in.
func mustCopyBusModule(t *testing.T, ctx context.Context) (folder string) {
	t.Helper()
	download := exec.CommandContext(ctx, "go", "mod", "download", "-C", filepath.Join("testdata", "azservicebus"), "-json", busModule)
	download.Env = append(os.Environ(), "GOWORK=off")
	out, err := download.Output()
	var found struct{ Dir string }
	if err != nil || json.Unmarshal(out, &found) != nil {
		t.Skip(missing(fmt.Sprintf("%s: %v %.500s", busModule, err, out)))
	}
	folder = filepath.Join(t.TempDir(), "module")
	if err := os.CopyFS(folder, os.DirFS(found.Dir)); err != nil {
		t.Fatal(err)
	}
	for _, x := range busLogins {
		file := filepath.Join(folder, filepath.FromSlash(x.file))
		text, err := os.ReadFile(file)
		if n := strings.Count(string(text), x.old); err != nil || n != 1 {
			t.Fatalf("%s has %q %d times, %v", x.file, x.old, n, err)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(text), x.old, x.new, 1)), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	rest := exec.CommandContext(ctx, "go", "mod", "download")
	rest.Dir, rest.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := rest.CombinedOutput(); err != nil {
		t.Skip(missing(fmt.Sprintf("what the tests of %s need: %v %.500s", busModule, err, out)))
	}
	return folder
}

// mustCertify makes a certificate for an address, in two files with the endings .pem and .key, and the file of its authority.
func mustCertify(t *testing.T, address string) (authority, certificate string) {
	t.Helper()
	a, err := cluster.NewAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	made, err := a.Certify("namespace", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.ParseIP(address)} })
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	certificate = filepath.Join(a.Dir, "namespace")
	for ending, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: made.Certificate[0]}, ".key": {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(certificate+ending, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(a.Dir, "ca.pem"), certificate
}

// mustFindListener returns where a node listens.
func mustFindListener(t *testing.T, ctx context.Context, n *cluster.Node, protocol string) string {
	t.Helper()
	var overview struct {
		Listeners []struct {
			Protocol string `json:"protocol"`
			Address  string `json:"ip_address"`
			Port     int    `json:"port"`
		} `json:"listeners"`
	}
	if err := n.Call(ctx, http.MethodGet, "/api/overview", nil, &overview); err != nil {
		t.Fatal(err)
	}
	for _, l := range overview.Listeners {
		if l.Protocol == protocol {
			return net.JoinHostPort(l.Address, fmt.Sprint(l.Port))
		}
	}
	t.Fatalf("no listener for %s: %+v", protocol, overview)
	return ""
}

// mustPrepareNamespace makes what the module's template for the service makes, and returns the variables by which its tests
// know of that.
func (b *bus) mustPrepareNamespace(t *testing.T) (env []string) {
	t.Helper()
	b.mustCreate(t, "testQueue", "<LockDuration>PT5M</LockDuration>")
	b.mustCreate(t, "testQueueWithSessions", "<LockDuration>PT5M</LockDuration>"+session)
	connection := func(rule, key string) string {
		return "Endpoint=sb://" + busHost + "/;SharedAccessKeyName=" + rule + ";SharedAccessKey=" + key
	}
	env = []string{
		"AZURE_RECORD_MODE=live", "SERVICEBUS_ENDPOINT=" + busHost, "SERVICEBUS_ENDPOINT_PREMIUM=" + busHost,
		"SERVICEBUS_CONNECTION_STRING=" + connection(busRule, busKey), "SERVICEBUS_CONNECTION_STRING_PREMIUM=" + connection(busRule, busKey),
	}
	for _, x := range []struct {
		variable, rule string
		rights         []string
	}{
		{"NO_MANAGE", "NoManage", []string{"Listen", "Send"}}, {"SEND_ONLY", "SendOnly", []string{"Send"}}, {"LISTEN_ONLY", "ListenOnly", []string{"Listen"}},
	} {
		key := strings.ToUpper(x.rule)
		rights := ""
		for _, right := range x.rights {
			rights += "<AccessRights>" + right + "</AccessRights>"
		}
		b.mustPut(t, "$AuthorizationRules/"+x.rule, "AuthorizationRule", "<Rights>"+rights+"</Rights><PrimaryKey>"+key+"</PrimaryKey>")
		env = append(env, "SERVICEBUS_CONNECTION_STRING_"+x.variable+"="+connection(x.rule, key))
	}
	return env
}

// result is what has become of a test of a package, and what it has said.
type result struct{ in, outcome, output string }

// readResults reads what "go test -json" writes: results by name, those of subtests included.
func readResults(t *testing.T, out []byte) map[string]result {
	t.Helper()
	results, failed := map[string]result{}, map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e.Test == "" {
			failed[e.Package] = failed[e.Package] || e.Action == "fail"
			continue
		}
		r := results[e.Test]
		r.in = e.Package
		switch e.Action {
		case "output":
			r.output += e.Output
		case "pass", "fail", "skip":
			r.outcome = e.Action
		}
		results[e.Test] = r
	}
	for _, r := range results {
		if r.outcome == "fail" {
			failed[r.in] = false
		}
	}
	for in, fails := range failed {
		if fails {
			t.Errorf("package %s fails, and none of its tests does", in)
		}
	}
	return results
}

// compareResults compares results with the exceptions. A test of which a part is skipped is not one that has passed.
func compareResults(t *testing.T, results map[string]result) {
	t.Helper()
	counts, partly := map[string]int{}, map[string]bool{}
	for name, r := range results {
		if whole, _, part := strings.Cut(name, "/"); part && r.outcome == "skip" {
			partly[whole] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		switch {
		case strings.Contains(name, "/"):
		case partly[name] && r.outcome == "pass":
			counts["skip"]++
		default:
			counts[r.outcome]++
		}
		switch x, excepted := busExceptions[name]; {
		case excepted && r.outcome != x.outcome:
			t.Errorf("%s: %s, but it is listed as: %s, %s\n%s", name, r.outcome, x.outcome, x.why, r.output)
		case excepted:
			t.Logf("%s: %s: %s", name, x.outcome, x.why)
		case r.outcome != "pass":
			t.Errorf("%s: %s\n%s", name, r.outcome, r.output)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(busExceptions)) {
		if _, ran := results[name]; !ran && busExceptions[name].outcome == "not run" {
			t.Logf("%s: not run: %s", name, busExceptions[name].why)
		} else if !ran {
			t.Errorf("%s has not been run", name)
		}
	}
	t.Logf("%d tests have passed, %d failed, %d were skipped", counts["pass"], counts["fail"], counts["skip"])
	if counts["pass"] < busPassed {
		t.Errorf("only %d tests have passed, of %d", counts["pass"], busPassed)
	}
}
