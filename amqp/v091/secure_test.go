package v091_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
)

// mustServeTLS starts a server with a TLS listener that asks for certificates.
func mustServeTLS(t *testing.T) (address string, roots *x509.CertPool, issue func(user string) tls.Certificate) {
	s := mustServe(t, func(c *amqp.Config) {
		c.CertificateUser = func(c *x509.Certificate) string { return c.Subject.CommonName }
	})
	authority := amqptest.NewAuthority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	secure := tls.NewListener(l, &tls.Config{
		Certificates: []tls.Certificate{authority.Issue("127.0.0.1")},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: authority.Roots(),
	})
	served := make(chan error, 1)
	go func() { served <- s.Serve(secure) }()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	return "amqps://" + l.Addr().String(), authority.Roots(), authority.Issue
}

// TestTLS serves clients by TLS, with a password and with a certificate.
func TestTLS(t *testing.T) {
	address, roots, issue := mustServeTLS(t)
	secure := func(user string) *tls.Config {
		c := &tls.Config{RootCAs: roots}
		if user != "" {
			c.Certificates = []tls.Certificate{issue(user)}
		}
		return c
	}
	byName := []amqp091.Authentication{&amqp091.ExternalAuth{}}
	for _, c := range []struct {
		name string
		user string // of the certificate; empty: none
		auth []amqp091.Authentication
		want string // of the error
	}{
		{"password", "", nil, ""},
		{"certificate", "guest", byName, ""},
		{"certificate and password", "nobody", nil, ""},
		{"certificate of a stranger", "nobody", byName, "username or password not allowed"},
		{"no certificate", "", byName, "could not negotiate a shared mechanism"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := amqp091.DialConfig(address, amqp091.Config{TLSClientConfig: secure(c.user), SASL: c.auth})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%v, want %s", err, c.want)
				}
				return
			}
			must(t, err)
			ch := mustChannel(t, conn)
			_, err = ch.QueueDeclare("q", false, false, false, false, nil)
			must(t, err)
			body := make([]byte, 300<<10) // several records, and several frames
			must(t, ch.PublishWithContext(t.Context(), "", "q", true, false, amqp091.Publishing{Body: body}))
			in, err := ch.Consume("q", "", true, false, false, false, nil)
			must(t, err)
			if d := receive(t, in); len(d.Body) != len(body) {
				t.Errorf("%d bytes", len(d.Body))
			}
			must(t, conn.Close())
		})
	}
	plain, err := net.Dial("tcp", strings.TrimPrefix(address, "amqps://"))
	must(t, err)
	defer plain.Close()
	_, err = plain.Write([]byte("AMQP\x00\x00\x09\x01"))
	must(t, err)
	answer := make([]byte, 8)
	if n, _ := plain.Read(answer); strings.HasPrefix(string(answer[:n]), "AMQP") {
		t.Errorf("answer to a client without TLS: %q", answer[:n])
	}
}

// anonymously logs in without saying who the client is.
type anonymously struct{}

func (anonymously) Mechanism() string { return amqp.Anonymous }
func (anonymously) Response() string  { return "" }

// Clients that do not say who they are have a user if there is one for them.
func TestAnonymous(t *testing.T) {
	for user, want := range map[string]string{"guest": "", "nobody": "username or password not allowed", "": "could not negotiate a shared mechanism"} {
		t.Run(user, func(t *testing.T) {
			s := mustServe(t, func(c *amqp.Config) { c.AnonymousUser = user })
			c, err := amqp091.DialConfig("amqp://"+s.addr+"/", amqp091.Config{SASL: []amqp091.Authentication{anonymously{}}})
			switch {
			case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Error(err)
			case err == nil:
				if list := s.Connections(); len(list) != 1 || list[0].User != user || list[0].Mechanism != amqp.Anonymous {
					t.Errorf("%+v", list)
				}
				must(t, c.Close())
			}
		})
	}
}
