package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// deployed is a file of the folder deploy.
type deployed struct{ path, text string }

// mustDeployed reads the files of the folder deploy whose names end in one of these ways.
func mustDeployed(t *testing.T, suffixes ...string) (files []deployed) {
	t.Helper()
	root := filepath.Join("..", "..", "deploy")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(path, s) }) {
			return err
		}
		text, err := os.ReadFile(path)
		files = append(files, deployed{path, string(text)})
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	return files
}

// confBlock is a file of settings in a manifest; its lines are indented.
var confBlock = regexp.MustCompile(`(?m)^( *)\S*\.conf: \|\n((?: +.*\n|\n)+)`)

// Every setting in a file that is deployed exists and has a value that is accepted, also those that
// are commented out as examples.
func TestDeployedSettings(t *testing.T) {
	example := regexp.MustCompile(`(?m)^#([a-z_.0-9]+ = )`)
	for _, f := range mustDeployed(t, ".conf", ".yaml") {
		if strings.Contains(f.path, "templates") {
			continue // what the chart renders is quorate.yaml
		}
		texts := []string{f.text}
		if strings.HasSuffix(f.path, ".yaml") {
			texts = nil
			for _, m := range confBlock.FindAllStringSubmatch(f.text, -1) {
				texts = append(texts, m[2])
			}
		}
		for _, text := range texts {
			s := defaults()
			if err := s.read(strings.NewReader(example.ReplaceAllString(text, "$1"))); err != nil {
				t.Errorf("%s: %v", f.path, err)
			}
			if strings.HasPrefix(s.dataDir, "/var/lib/quorate") != strings.Contains(text, "data_dir") {
				t.Errorf("%s: data_dir is %s", f.path, s.dataDir)
			}
		}
	}
}

// Every QUORATE_… variable that is set where a node is deployed is one of a setting.
func TestDeployedEnvironment(t *testing.T) {
	set := regexp.MustCompile(`\b(QUORATE_[A-Z0-9_]+)(?:: | ?=|\n *value:)`)
	own := []string{fileVariable, "QUORATE_VERSION", "QUORATE_USER", "QUORATE_PASSWORD"} // the latter ones are variables of compose.yaml
	found := 0
	for _, f := range mustDeployed(t, ".yaml", "Dockerfile", "main.go", ".service") {
		for _, m := range set.FindAllStringSubmatch(f.text, -1) {
			found++
			known := slices.Contains(own, m[1]) || slices.ContainsFunc(table, func(row setting) bool { return variable(row.key) == m[1] })
			if !known {
				t.Errorf("%s sets %s, and there is no such setting", f.path, m[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d variables are found", found)
	}
}

// Every health check that probes use exists.
func TestDeployedProbes(t *testing.T) {
	routes, err := os.ReadFile(filepath.Join("..", "..", "cluster", "mgmt", "routes.go"))
	if err != nil {
		t.Fatal(err)
	}
	path := regexp.MustCompile(`/api/health/checks/([a-z-]+)`)
	for _, f := range mustDeployed(t, ".yaml", ".tpl") {
		for _, m := range path.FindAllStringSubmatch(f.text, -1) {
			if !strings.Contains(string(routes), `{path + "`+m[1]+`", []endpoint{get(anybody,`) {
				t.Errorf("%s asks for %s, which does not exist or needs a login", f.path, m[0])
			}
		}
	}
}

// The unit starts the server with a file of settings that the packages install, outlasts the server's
// own stop, and is hardened; as far as systemd's tools are there, they find nothing wrong.
func TestUnit(t *testing.T) {
	unit := mustDeployed(t, "quorate.service")[0]
	for _, want := range []string{
		"\nType=notify\n", "\nExecStart=/usr/bin/quorate server --config /etc/quorate/quorate.conf\n", "\nKillSignal=SIGTERM\n", "\nTimeoutStopSec=60\n",
		"\nRestartPreventExitStatus=75 76 77\n", "\nWatchdogSec=60\n",
	} {
		if !strings.Contains(unit.text, want) {
			t.Errorf("the unit has no line %q", strings.TrimSpace(want))
		}
	}
	if stopWait.Seconds() > 30 {
		t.Errorf("a stop takes up to %v; the unit waits for 60 s", stopWait)
	}
	packaged := mustDeployed(t, "nfpm.yaml")[0]
	for _, path := range []string{"/etc/quorate/quorate.conf", "/usr/bin/quorate,", "/usr/lib/systemd/system/quorate.service"} {
		if !strings.Contains(packaged.text, "dst: "+path) {
			t.Errorf("the packages do not install %s", path)
		}
	}
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze on this machine")
	}
	out, err := exec.Command(tool, "security", "--offline=true", "--threshold=20", "--no-pager", unit.path).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "unrecognized option") {
			t.Skip("systemd-analyze is older than version 250")
		}
		t.Errorf("its exposure level is above 2.0: %v\n%s", err, out)
	}
}
