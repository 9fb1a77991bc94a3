package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Certificates are made, shown and replaced without a node, and nothing is
// written over.
func TestCerts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	one := `\d{4}-\d\d-\d\d, sha256 [0-9a-f]{64}\n`
	for _, test := range []struct {
		args string
		code int
		want string // regular expression
	}{
		{"certs node n1", exitData, `no such file`},
		{"certs init --algorithm rsa", exitUsage, `--algorithm must be ecdsa or ed25519, not "rsa"`},
		{"certs init --days 0", exitUsage, `--days must be a number from 1 to 36500, not "0"`},
		{"certs init --days 30 --algorithm ed25519", exitOK, `^quorate authority of \S+, valid until ` + one + `$`},
		{"certs init", exitData, `ca.pem: file already exists`},
		{"certs node n1 n2 --days 7", exitOK, `^n1, valid until ` + one + `n2, valid until ` + one + `$`},
		{"certs node n1", exitData, `n1.pem: file already exists`},
		{"certs server localhost 127.0.0.1 ::1 *.mq.example", exitOK, `^Written to \S+/server-localhost.pem and \S+/server-localhost.key\nlocalhost \*.mq.example 127.0.0.1 ::1, valid until ` + one + `$`},
		{"certs server localhost -q", exitOK, `^$`},
		{"certs server a/b", exitFailed, `neither a host's name nor an address`},
		{"certs server", exitUsage, `certs server takes NAME`},
		{"certs node ../n1", exitFailed, `cannot be the name of a node`},
		{"certs show -s", exitOK, `^quorate authority of \S+\tauthority\t\S+\t[0-9a-f]{64}\t\S+/ca.pem\nn1\tnode\t\S+\t[0-9a-f]{64}\t\S+/n1.pem\nn2\tnode\t.*\nlocalhost\tserver\t.*\n$`},
		{"certs rotate ca", exitOK, `^quorate authority of`},
		{"certs retire", exitFailed, `n1.pem is signed by an earlier authority: rotate it first`},
		{"certs rotate n1 n2 -q", exitOK, `^$`},
		{"certs retire", exitFailed, `server-localhost.pem is signed by an earlier authority`},
		{"certs server localhost -q", exitOK, `^$`},
		{"certs rotate n3", exitData, `no such file`},
		{"certs show -s", exitOK, `^(quorate authority of .*\n){2}n1\t.*\nn2\t.*\nlocalhost\t.*\n$`},
		{"certs retire", exitOK, `^quorate authority of`},
		{"certs show -s", exitOK, `^(quorate authority of .*\n){1}n1\t.*\nn2\t.*\nlocalhost\t.*\n$`},
		{"certs node", exitUsage, `certs node takes NODE`},
		{"certs retire now", exitUsage, `certs retire takes no arguments`},
		{"certs revoke n1", exitUsage, `certs is followed by init, node, server, ensure, rotate, retire or show, not "revoke"`},
		{"certs show nowhere", exitData, `no such file`},
		{"version --dir x", exitUsage, `unknown flag: --dir`},
	} {
		args := strings.Fields(test.args)
		if args[0] == "certs" {
			args = append(args, "--dir", dir)
		}
		code, out, errOut := command(args...)
		if text := out + errOut; code != test.code || !regexp.MustCompile(test.want).MatchString(text) {
			t.Errorf("%s: exit %d, %q, want %d, %s", test.args, code, text, test.code, test.want)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 8 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", f.Name(), info.Mode(), err)
		}
	}
}

// What is missing is made, and what exists stays: a command that a machine can repeat.
func TestCertsEnsure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	for _, test := range []struct{ args, want string }{
		{"certs ensure n1", `^quorate authority of .*\nn1, .*\n$`},
		{"certs ensure n1", `^$`},
		{"certs ensure n1 n2 n3", `^n2, .*\nn3, .*\n$`},
	} {
		if code, out, errOut := command(append(strings.Fields(test.args), "--dir", dir)...); code != exitOK || !regexp.MustCompile(test.want).MatchString(out+errOut) {
			t.Errorf("%s: exit %d, %q %q, want %s", test.args, code, out, errOut, test.want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := command("certs", "ensure", "n1", "n4", "--dir", dir); code != exitData {
		t.Errorf("without the authority's key: exit %d", code)
	}
}
