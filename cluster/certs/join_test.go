package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A token's text is read back, and nothing else is taken for one.
func TestTokenText(t *testing.T) {
	for _, authority := range [][]byte{nil, bytes.Repeat([]byte{0xff}, 32)} {
		made, err := NewToken(authority)
		if err != nil {
			t.Fatal(err)
		}
		text := made.Text()
		read, err := ParseToken(text + "\n")
		if err != nil || !bytes.Equal(read.Authority, authority) || !bytes.Equal(read.Hash(), made.Hash()) || bytes.Contains(made.Hash(), made.Secret[:8]) {
			t.Errorf("%q: %+v, %v", text, read, err)
		}
		for _, wrong := range []string{"", text[1:], text[:len(text)-1], text + "A", text + ".", strings.ToUpper(text), strings.Replace(text, ".", "", 1), "qjt1.AAAA." + text[len(text)-43:]} {
			if _, err := ParseToken(wrong); err == nil || strings.Contains(err.Error(), text[len(text)-20:]) {
				t.Errorf("%q is taken for a token: %v", wrong, err)
			}
		}
	}
}

// mustSigner opens the keys of a node that has the authority's, too.
func (f *folder) mustSigner(node string) *Keys {
	f.t.Helper()
	files := f.files(node)
	files.AuthorityKey = filepath.Join(f.dir, AuthorityKeyFile)
	k, err := Open(node, files, func(err error) { f.t.Error(err) })
	if err != nil {
		f.t.Fatal(err)
	}
	return k
}

// newcomer is a node without a certificate.
func newcomer(t *testing.T, node string) (*Waiting, Files) {
	dir := filepath.Join(t.TempDir(), "certs")
	f := Files{Authorities: filepath.Join(dir, AuthorityFile), Certificate: filepath.Join(dir, NodeFile), Key: filepath.Join(dir, NodeKeyFile)}
	return Wait(node, f, func() (*Keys, error) { return Open(node, f, func(err error) { t.Error(err) }) }), f
}

func mustInvited(t *testing.T, k interface {
	Invited([]byte) (*tls.Config, error)
}, pin []byte) *tls.Config {
	t.Helper()
	c, err := k.Invited(pin)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Who has no certificate gets as far as a node that signs, if that is signed by
// the authority that the token pins, and no further.
func TestInvitation(t *testing.T) {
	f, foreign := mustFolder(t, "n1", "n2"), mustFolder(t, "n1")
	plain, signer := f.mustKeys("n1"), f.mustSigner("n1")
	pin, err := signer.Authority()
	if err != nil || Fingerprint(mustOpen(t, f.dir).Certificate) != hex.EncodeToString(pin) {
		t.Fatalf("%x, %v", pin, err)
	}
	other, err := foreign.mustKeys("n1").Authority()
	if err != nil {
		t.Fatal(err)
	}
	w, _ := newcomer(t, "n9")
	if from, to := connect(t, mustInvited(t, w, pin), mustServer(t, signer)); from != nil || to != nil {
		t.Errorf("invited: %v, %v", from, to)
	}
	if from, _ := connect(t, mustInvited(t, w, pin), mustServer(t, plain)); from == nil || !strings.Contains(from.Error(), "no application protocol") {
		t.Errorf("a node that signs nothing: %v", from)
	}
	for name, server := range map[string]*Keys{"the pinned authority is another": signer, "another cluster's node": foreign.mustSigner("n1")} {
		wrong := other
		if server != signer {
			wrong = pin
		}
		if from, _ := connect(t, mustInvited(t, w, wrong), mustServer(t, server)); from == nil || !strings.Contains(from.Error(), "belongs to another one") {
			t.Errorf("%s: %v", name, from)
		}
	}
	// The authority is shown by who has no certificate of it.
	liar := mustServer(t, foreign.mustSigner("n1"))
	get := liar.GetConfigForClient
	liar.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := get(h)
		c.Certificates[0].Certificate = append(c.Certificates[0].Certificate, mustOpen(t, f.dir).Certificate.Raw)
		return c, err
	}
	if from, _ := connect(t, mustInvited(t, w, pin), liar); from == nil || !strings.Contains(from.Error(), "unknown authority") {
		t.Errorf("an authority that is only shown: %v", from)
	}
	// With a certificate the pin is held against the authorities at hand.
	n2 := f.mustKeys("n2")
	if from, to := connect(t, mustInvited(t, n2, pin), mustServer(t, plain)); from != nil || to != nil {
		t.Errorf("with a certificate: %v, %v", from, to)
	}
	if _, err := n2.Invited(other); err == nil || !strings.Contains(err.Error(), "which is not in") {
		t.Errorf("with a certificate, another cluster's token: %v", err)
	}
	// Both protocols at once are a link, and that needs a certificate.
	both := mustInvited(t, w, pin)
	both.NextProtos = []string{JoinProtocol, LinkProtocol}
	if from, _ := connect(t, both, mustServer(t, signer)); from == nil {
		t.Error("a link without a certificate")
	}
	for _, ask := range []func() (*tls.Config, error){w.Server, func() (*tls.Config, error) { return w.Client("n1") }} {
		if _, err := ask(); err == nil {
			t.Error("who waits for a certificate has links")
		}
	}
}

// A certificate is made for the name that was let in, whatever the request says,
// and is taken only if it fits the node and its key.
func TestEnrolment(t *testing.T) {
	f := mustFolder(t, "n1")
	signer := f.mustSigner("n1")
	w, files := newcomer(t, "n9")
	request, err := w.Request()
	if err != nil {
		t.Fatal(err)
	}
	made, certificate, authorities, err := signer.Sign("n9", request)
	if err != nil || made.DNSNames[0] != "n9" || made.IsCA {
		t.Fatalf("%+v, %v", made, err)
	}
	_, elsewhere, _, err := signer.Sign("n8", request)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _ := newcomer(t, "n9")
	other, err := stranger.Request()
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, _, err := signer.Sign("n9", other)
	if err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string][2][]byte{
		"another name": {elsewhere, authorities}, "another key": {foreign, authorities}, "another authority": {certificate, pemOf(t, mustFolder(t).dir)},
		"nothing": {nil, authorities}, "no authority": {certificate, nil},
	} {
		if err := w.Accept(wrong[0], wrong[1]); err == nil {
			t.Errorf("%s is taken", name)
		}
		if _, err := os.Stat(files.Certificate); err == nil {
			t.Errorf("%s is kept", name)
		}
	}
	if err := w.Accept(certificate, authorities); err != nil {
		t.Fatal(err)
	}
	if r, err := w.Request(); r != nil || err != nil {
		t.Errorf("who has a certificate asks for one: %x, %v", r, err)
	}
	if from, to := connect(t, mustClient(t, w.Keys(), "n1"), mustServer(t, signer)); from != nil || to != nil {
		t.Errorf("a link: %v, %v", from, to)
	}
	if from, to := connect(t, mustClient(t, signer, "n9"), mustServer(t, w.Keys())); from != nil || to != nil {
		t.Errorf("the other way: %v, %v", from, to)
	}
	if info, err := os.Stat(files.Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
}

func pemOf(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, AuthorityFile))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// What asks for a certificate in bad form gets none.
func TestSignRefuses(t *testing.T) {
	f := mustFolder(t, "n1")
	signer := f.mustSigner("n1")
	w, _ := newcomer(t, "n9")
	good, err := w.Request()
	if err != nil {
		t.Fatal(err)
	}
	spoilt := bytes.Clone(good)
	spoilt[len(spoilt)-1] ^= 1
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	odd, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	for name, request := range map[string][]byte{"nothing": nil, "cut": good[:20], "signature": spoilt, "key": odd} {
		if _, c, _, err := signer.Sign("n9", request); err == nil {
			t.Errorf("%s: %s", name, c)
		}
	}
	if _, _, _, err := f.mustKeys("n1").Sign("n9", good); err != errSignsNone {
		t.Errorf("without the authority's key: %v", err)
	}
}

// The key that was made is used when the node asks once more, also after a
// restart.
func TestRequestKeepsKey(t *testing.T) {
	w, files := newcomer(t, "n9")
	public := func(w *Waiting) any {
		t.Helper()
		raw, err := w.Request()
		if err != nil {
			t.Fatal(err)
		}
		r, err := x509.ParseCertificateRequest(raw)
		if err != nil {
			t.Fatal(err)
		}
		return r.PublicKey
	}
	first := public(w)
	if !first.(*ecdsa.PublicKey).Equal(public(w).(*ecdsa.PublicKey)) {
		t.Error("another key for another request")
	}
	if later := public(Wait("n9", files, nil)); !first.(*ecdsa.PublicKey).Equal(later.(*ecdsa.PublicKey)) {
		t.Error("another key after a restart")
	}
}
