package main

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/quorate/quorate/cluster/ceiling"
)

// ceilings bound the connections to a node, so that there are always file
// descriptors for its stores and links. The zero of a setting stands for the
// part of the system's limit that is its listener's.
type ceilings struct {
	shares ceiling.Shares
	logger *slog.Logger
	all    []*ceiling.Ceiling
}

// tooManyRequests is what HTTP clients are told of whom there are too many.
const tooManyRequests = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 10\r\n" +
	"Content-Length: 62\r\n\r\n" + `{"error":"unavailable","reason":"there are too many clients"}` + "\n"

func newCeilings(logger *slog.Logger) (*ceilings, error) {
	files, err := ceiling.Files()
	if err != nil {
		return nil, err
	}
	shares, err := ceiling.Share(files)
	if err != nil {
		return nil, err
	}
	return &ceilings{shares: shares, logger: logger}, nil
}

// allotment is what a plain listener and one by TLS may have, in equal parts.
type allotment struct {
	name, secure   string
	setting, share int
	config         ceiling.Config
}

// below returns the ceiling of one of the two. By TLS nobody can be answered.
func (c *ceilings) below(b allotment, secure bool) *ceiling.Ceiling {
	if secure {
		b.name, b.config.Answer = b.secure, ""
	}
	return c.bound(b.name, b.setting, b.share, b.config)
}

// bound returns a ceiling for a listener. setting is how many connections its
// setting allows, share how many the system does.
func (c *ceilings) bound(name string, setting, share int, more ceiling.Config) *ceiling.Ceiling {
	if setting > share {
		c.logger.Warn("the limit of open files allows fewer connections than the setting", "listener", name, "setting", setting, "allowed", share)
	}
	more.Name, more.Most, more.Logger = name, ceiling.Of(setting, share), c.logger
	one := ceiling.New(more)
	c.all = append(c.all, one)
	return one
}

// status says how the ceilings stand.
func (c *ceilings) status() []ceiling.Status {
	list := make([]ceiling.Status, len(c.all))
	for i, one := range c.all {
		list[i] = one.Status()
	}
	return list
}

// maxClients is how many clients may be connected, so that those beyond can be
// told before sockets are short.
func (c *ceilings) maxClients(setting int) int {
	return ceiling.Of(setting, c.shares.Clients-c.shares.Clients/8)
}

// listenBelow listens at an address below a ceiling.
func listenBelow(c *ceiling.Ceiling, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return c.Listen(l), nil
}
