package v10

import (
	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// catalogValue returns a value as the catalog keeps values; nil: it keeps none of this kind.
func catalogValue(v wire.Value) *logpb.Value { return message.Value(v) }

// catalogTable returns a map as the catalog keeps tables.
func catalogTable(v wire.Value) *fsm.Table { return catalogValue(v).GetTable() }
