package mgmt

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
)

func (s *Server) settings(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, s.node.Settings())
}

func (s *Server) putSetting(w http.ResponseWriter, r *http.Request) {
	var body api.SettingValue
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Value == nil {
		s.answer(w, http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: `the body is {"value": NUMBER}`})
		return
	}
	s.changeSetting(w, r, body.Value)
}

func (s *Server) deleteSetting(w http.ResponseWriter, r *http.Request) { s.changeSetting(w, r, nil) }

func (s *Server) changeSetting(w http.ResponseWriter, r *http.Request, value *int64) {
	err := s.node.PutSetting(r.Context(), r.PathValue("name"), value)
	var refusal *fsm.Refusal
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.As(err, &refusal) && refusal.Kind == fsm.NotFoundKind:
		s.answer(w, http.StatusNotFound, api.Failure{Error: "not_found", Reason: refusal.Text})
	case errors.As(err, &refusal):
		s.answer(w, http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: refusal.Text})
	default:
		s.answer(w, http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
	}
}
