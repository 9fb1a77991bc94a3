package frames

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// ErrEnded is what Await returns when a link, a session or the connection ends instead.
var ErrEnded = errors.New("ended by the other side")

// Login connects, logs in with PLAIN, and opens the connection. host is the one that is asked for.
func Login(ctx context.Context, addr, user, password, host string) (*Conn, error) {
	c, err := Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := c.login(user, password, host); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Conn) login(user, password, host string) error {
	login, opened := Header(3), Header(0)
	_, err := c.Write(bytes.Join([][]byte{login,
		Encode(0, "sasl-init", Fields{"mechanism": "PLAIN", "initial-response": "\x00" + user + "\x00" + password}), opened,
		Encode(0, "open", Fields{"container-id": "frames", "hostname": host, "max-frame-size": maxFrame, "channel-max": 100}),
	}, nil))
	if err == nil {
		err = c.expectHeader(login)
	}
	var f Frame
	if err == nil {
		f, err = c.Await("sasl-outcome")
	}
	if err == nil && f.Fields.Int("code") != 0 {
		err = fmt.Errorf("login refused with %d", f.Fields.Int("code"))
	}
	if err == nil {
		err = c.expectHeader(opened)
	}
	if err == nil {
		_, err = c.Await("open")
	}
	return err
}

func (c *Conn) expectHeader(want []byte) error {
	have, err := c.ReadHeader()
	if err == nil && !bytes.Equal(have, want) {
		err = fmt.Errorf("answered with %q", have)
	}
	return err
}

// Await reads frames up to the one with a name. A link, a session or the connection that ends before it is ErrEnded.
func (c *Conn) Await(name string) (Frame, error) {
	for {
		f, err := c.ReadFrame()
		switch {
		case err != nil || f.Name == name:
			return f, err
		case f.Name == "detach" || f.Name == "end" || f.Name == "close":
			return f, fmt.Errorf("%w: %s: %v", ErrEnded, f.Name, f.Fields["error"])
		}
	}
}
