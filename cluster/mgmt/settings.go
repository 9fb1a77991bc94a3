package mgmt

import (
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

func (s *Server) settings(w http.ResponseWriter, _ *request) {
	s.answer(w, http.StatusOK, s.node.Settings())
}

func (s *Server) putSetting(w http.ResponseWriter, r *request) {
	var body api.SettingValue
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.Value == nil {
		s.answer(w, http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: `the body is {"value": NUMBER}`})
		return
	}
	s.changeSetting(w, r, body.Value)
}

func (s *Server) deleteSetting(w http.ResponseWriter, r *request) { s.changeSetting(w, r, nil) }

func (s *Server) changeSetting(w http.ResponseWriter, r *request, value *int64) {
	s.changed(w, s.node.PutSetting(r.Context(), r.PathValue("name"), value), false)
}
