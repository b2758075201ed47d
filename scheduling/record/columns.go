package record

import (
	"math"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// codec carries the values of one data type between a cycle and a record. producer is the name that the record's values
// carry: empty where one producer alone fills the type.
type codec struct {
	write func(d *decisionv1.Decision, producer string, c *scheduling.Cycle, from scheduling.ColumnInfo)
	read  func(d *decisionv1.Decision, producer string, c *scheduling.Cycle, to scheduling.ColumnInfo)
}

// codecs are the data types that records have fields for.
var codecs = map[string]codec{
	scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo](): column(
		(*decisionv1.Candidate).GetPrefixCacheMatches,
		func(e *decisionv1.Candidate, m *decisionv1.PrefixCacheMatch) {
			e.PrefixCacheMatches = append(e.PrefixCacheMatches, m)
		}, matchTo, matchFrom),
	scheduling.DataTypeOf[scheduling.Ejected](): column(
		(*decisionv1.Candidate).GetEjections,
		func(e *decisionv1.Candidate, m *decisionv1.Ejection) {
			e.Ejections = append(e.Ejections, m)
		}, ejectedTo, ejectedFrom),
	scheduling.DataTypeOf[scheduling.InFlightLoad](): column(
		(*decisionv1.Candidate).GetInFlightLoads,
		func(e *decisionv1.Candidate, m *decisionv1.InFlightLoad) {
			e.InFlightLoads = append(e.InFlightLoads, m)
		}, InFlightLoad, loadFrom),
	scheduling.DataTypeOf[scheduling.UncachedRequestTokens](): column(
		(*decisionv1.Candidate).GetUncachedRequestTokens,
		func(e *decisionv1.Candidate, m *decisionv1.UncachedRequestTokens) {
			e.UncachedRequestTokens = append(e.UncachedRequestTokens, m)
		}, uncachedTo, uncachedFrom),
	scheduling.DataTypeOf[scheduling.EngineMetrics](): column(
		(*decisionv1.Candidate).GetEngineMetrics,
		func(e *decisionv1.Candidate, m *decisionv1.EngineMetrics) {
			e.EngineMetrics = append(e.EngineMetrics, m)
		}, EngineMetrics, metricsFrom),
	scheduling.DataTypeOf[scheduling.LatencyPrediction](): column(
		(*decisionv1.Candidate).GetLatencyPredictions,
		func(e *decisionv1.Candidate, m *decisionv1.LatencyPrediction) {
			e.LatencyPredictions = append(e.LatencyPredictions, m)
		}, predictionTo, PredictionFrom),
	scheduling.DataTypeOf[scheduling.ColdRank](): column(
		(*decisionv1.Candidate).GetColdRanks,
		func(e *decisionv1.Candidate, m *decisionv1.ColdRank) {
			e.ColdRanks = append(e.ColdRanks, m)
		}, coldRankTo, coldRankFrom),
	scheduling.DataTypeOf[scheduling.SessionHome](): column(
		(*decisionv1.Candidate).GetSessionHomes,
		func(e *decisionv1.Candidate, m *decisionv1.SessionHome) {
			e.SessionHomes = append(e.SessionHomes, m)
		}, homeTo, homeFrom),
	scheduling.DataTypeOf[scheduling.LearntRates](): column(
		(*decisionv1.Candidate).GetLearntRates,
		func(e *decisionv1.Candidate, m *decisionv1.LearntRates) { e.LearntRates = append(e.LearntRates, m) },
		ratesTo, ratesFrom),
	scheduling.DataTypeOf[scheduling.TokenizedPrompt]():  {write: writePrompt, read: readPrompt},
	scheduling.DataTypeOf[scheduling.PoolPressure]():     {write: writePressure, read: readPressure},
	scheduling.DataTypeOf[scheduling.LatencyObjective](): {write: writeObjective, read: readObjective},
}

// produced is a message that names its producer.
type produced interface{ GetProducer() string }

// column is the codec of a column with values of type T, which records hold as messages of type M.
func column[T any, M produced](
	list func(*decisionv1.Candidate) []M, add func(*decisionv1.Candidate, M),
	to func(T, string) M, from func(M) T,
) codec {
	return codec{
		write: func(d *decisionv1.Decision, producer string, c *scheduling.Cycle, info scheduling.ColumnInfo) {
			values := scheduling.ColumnAt[T](c, info)
			for _, e := range d.GetCandidates() {
				if o := int(e.GetOrdinal()); c.Considered.Has(o) {
					if value, ok := values.Get(o); ok {
						add(e, to(value, producer))
					}
				}
			}
		},
		read: func(d *decisionv1.Decision, producer string, c *scheduling.Cycle, info scheduling.ColumnInfo) {
			values := scheduling.ColumnAt[T](c, info)
			if values == nil {
				return
			}
			for _, e := range d.GetCandidates() {
				for _, m := range list(e) {
					if m.GetProducer() == producer {
						values.Set(int(e.GetOrdinal()), from(m))
					}
				}
			}
		},
	}
}

// addColumns records every column. The name of a type's only producer is not repeated with each value.
func addColumns(d *decisionv1.Decision, c *scheduling.Cycle, columns []scheduling.ColumnInfo) {
	producers := make(map[string]int, len(columns))
	for _, info := range columns {
		producers[info.DataType]++
	}
	for _, info := range columns {
		k, known := codecs[info.DataType]
		d.Columns = append(d.Columns, &decisionv1.Column{DataType: info.DataType, Producer: info.Producer, Opaque: !known})
		if !known {
			continue
		}
		producer := info.Producer
		if producers[info.DataType] == 1 {
			producer = ""
		}
		k.write(d, producer, c, info)
	}
}

func matchTo(v scheduling.PrefixCacheMatchInfo, producer string) *decisionv1.PrefixCacheMatch {
	return &decisionv1.PrefixCacheMatch{
		Producer: producer, MatchBlocks: int64(v.MatchBlocks), CachedBlockCount: int64(v.CachedBlockCount),
		TotalBlocks: int64(v.TotalBlocks), BlockSizeTokens: int64(v.BlockSizeTokens),
	}
}

func matchFrom(m *decisionv1.PrefixCacheMatch) scheduling.PrefixCacheMatchInfo {
	return scheduling.PrefixCacheMatchInfo{
		MatchBlocks: int(m.GetMatchBlocks()), CachedBlockCount: int(m.GetCachedBlockCount()),
		TotalBlocks: int(m.GetTotalBlocks()), BlockSizeTokens: int(m.GetBlockSizeTokens()),
	}
}

func ejectedTo(_ scheduling.Ejected, producer string) *decisionv1.Ejection {
	return &decisionv1.Ejection{Producer: producer}
}

func ejectedFrom(*decisionv1.Ejection) scheduling.Ejected { return scheduling.Ejected{} }

func homeTo(_ scheduling.SessionHome, producer string) *decisionv1.SessionHome {
	return &decisionv1.SessionHome{Producer: producer}
}

func homeFrom(*decisionv1.SessionHome) scheduling.SessionHome { return scheduling.SessionHome{} }

// InFlightLoad is a load as records have it; producer is empty where it is the only one of its kind.
func InFlightLoad(v scheduling.InFlightLoad, producer string) *decisionv1.InFlightLoad {
	return &decisionv1.InFlightLoad{Producer: producer, Requests: v.Requests, Tokens: v.Tokens, Decoding: v.Decoding}
}

func loadFrom(m *decisionv1.InFlightLoad) scheduling.InFlightLoad {
	return scheduling.InFlightLoad{Requests: m.GetRequests(), Tokens: m.GetTokens(), Decoding: m.GetDecoding()}
}

func uncachedTo(v scheduling.UncachedRequestTokens, producer string) *decisionv1.UncachedRequestTokens {
	return &decisionv1.UncachedRequestTokens{Producer: producer, Tokens: int64(v)}
}

func uncachedFrom(m *decisionv1.UncachedRequestTokens) scheduling.UncachedRequestTokens {
	return scheduling.UncachedRequestTokens(m.GetTokens())
}

func predictionTo(v scheduling.LatencyPrediction, producer string) *decisionv1.LatencyPrediction {
	return &decisionv1.LatencyPrediction{
		Producer: producer, TtftMs: v.TTFTMs, TpotMs: v.TPOTMs, Confidence: v.Confidence,
		TtftP90Ms: v.TTFTP90Ms, TpotP90Ms: v.TPOTP90Ms, TtftHeadroomMs: v.TTFTHeadroomMs, TpotHeadroomMs: v.TPOTHeadroomMs,
		WaitMs: v.WaitMs, PrefillMs: v.PrefillMs, Residual: v.Residual, WholeResponse: v.WholeResponse,
	}
}

// PredictionFrom is a prediction as a record has it.
func PredictionFrom(m *decisionv1.LatencyPrediction) scheduling.LatencyPrediction {
	return scheduling.LatencyPrediction{
		TTFTMs: m.GetTtftMs(), TPOTMs: m.GetTpotMs(), Confidence: m.GetConfidence(),
		TTFTP90Ms: m.GetTtftP90Ms(), TPOTP90Ms: m.GetTpotP90Ms(),
		TTFTHeadroomMs: m.GetTtftHeadroomMs(), TPOTHeadroomMs: m.GetTpotHeadroomMs(),
		WaitMs: m.GetWaitMs(), PrefillMs: m.GetPrefillMs(), Residual: m.GetResidual(), WholeResponse: m.GetWholeResponse(),
	}
}

func writeObjective(d *decisionv1.Decision, producer string, c *scheduling.Cycle, from scheduling.ColumnInfo) {
	if v, ok := scheduling.ValueAt[scheduling.LatencyObjective](c, from).Get(); ok {
		d.Request.LatencyObjectives = append(d.Request.LatencyObjectives, &decisionv1.LatencyObjective{
			Producer: producer, TtftMs: v.TTFTMs, TpotMs: v.TPOTMs,
		})
	}
}

func readObjective(d *decisionv1.Decision, producer string, c *scheduling.Cycle, to scheduling.ColumnInfo) {
	value := scheduling.ValueAt[scheduling.LatencyObjective](c, to)
	if value == nil {
		return
	}
	for _, m := range d.GetRequest().GetLatencyObjectives() {
		if m.GetProducer() == producer {
			value.Set(ObjectiveFrom(m))
		}
	}
}

// ObjectiveFrom is an objective as a record has it.
func ObjectiveFrom(m *decisionv1.LatencyObjective) scheduling.LatencyObjective {
	return scheduling.LatencyObjective{TTFTMs: m.GetTtftMs(), TPOTMs: m.GetTpotMs()}
}

// EngineMetrics is what an engine said as records have it; producer is empty where it is the only one of its kind.
func EngineMetrics(v scheduling.EngineMetrics, producer string) *decisionv1.EngineMetrics {
	m := &decisionv1.EngineMetrics{Producer: producer, HasAdapters: v.Has(scheduling.MetricsAdapters), AgeMs: v.AgeMs}
	if v.Has(scheduling.MetricsWaiting) {
		m.Waiting = &v.Waiting
	}
	if v.Has(scheduling.MetricsRunning) {
		m.Running = &v.Running
	}
	if v.Has(scheduling.MetricsKVUsage) {
		m.KvUsage = &v.KVUsage
	}
	if m.HasAdapters {
		m.Adapter = decisionv1.AdapterUse(v.Adapter)
		m.Adapters, m.MaxAdapters = few(v.Adapters), few(v.MaxAdapters)
	}
	return m
}

func metricsFrom(m *decisionv1.EngineMetrics) scheduling.EngineMetrics {
	v := scheduling.EngineMetrics{
		Waiting: m.GetWaiting(), Running: m.GetRunning(), KVUsage: m.GetKvUsage(), AgeMs: m.GetAgeMs(),
	}
	if m.Waiting != nil {
		v.Known |= scheduling.MetricsWaiting
	}
	if m.Running != nil {
		v.Known |= scheduling.MetricsRunning
	}
	if m.KvUsage != nil {
		v.Known |= scheduling.MetricsKVUsage
	}
	if m.GetHasAdapters() {
		v.Known |= scheduling.MetricsAdapters
		v.Adapter = scheduling.AdapterUse(min(max(0, m.GetAdapter()), math.MaxUint8))
		v.Adapters, v.MaxAdapters = int(m.GetAdapters()), int(m.GetMaxAdapters())
	}
	return v
}

// few is a number that records hold in 32 bits.
func few(n int) uint32 { return uint32(min(max(0, n), math.MaxInt32)) }

func coldRankTo(v scheduling.ColdRank, producer string) *decisionv1.ColdRank {
	return &decisionv1.ColdRank{Producer: producer, Rank: int64(v)}
}

func coldRankFrom(m *decisionv1.ColdRank) scheduling.ColdRank {
	return scheduling.ColdRank(m.GetRank())
}

func writePrompt(d *decisionv1.Decision, producer string, c *scheduling.Cycle, from scheduling.ColumnInfo) {
	if v, ok := scheduling.ValueAt[scheduling.TokenizedPrompt](c, from).Get(); ok {
		d.Request.TokenizedPrompts = append(d.Request.TokenizedPrompts, &decisionv1.TokenizedPrompt{
			Producer: producer, Tokens: uint64(max(0, v.Count)), Exact: v.Exact, BytesPerToken: v.BytesPerToken,
		})
	}
}

func readPrompt(d *decisionv1.Decision, producer string, c *scheduling.Cycle, to scheduling.ColumnInfo) {
	value := scheduling.ValueAt[scheduling.TokenizedPrompt](c, to)
	if value == nil {
		return
	}
	for _, m := range d.GetRequest().GetTokenizedPrompts() {
		if m.GetProducer() == producer {
			value.Set(scheduling.TokenizedPrompt{
				Count: int(m.GetTokens()), Exact: m.GetExact(), BytesPerToken: m.GetBytesPerToken(),
			})
		}
	}
}

func ratesTo(v scheduling.LearntRates, producer string) *decisionv1.LearntRates {
	return &decisionv1.LearntRates{
		Producer: producer, PrefillMsPerToken: v.PrefillMsPerToken, WaitMsPerToken: v.WaitMsPerToken, Confidence: v.Confidence,
	}
}

func ratesFrom(m *decisionv1.LearntRates) scheduling.LearntRates {
	return scheduling.LearntRates{
		PrefillMsPerToken: m.GetPrefillMsPerToken(), WaitMsPerToken: m.GetWaitMsPerToken(), Confidence: m.GetConfidence(),
	}
}

func writePressure(d *decisionv1.Decision, producer string, c *scheduling.Cycle, from scheduling.ColumnInfo) {
	if v, ok := scheduling.ValueAt[scheduling.PoolPressure](c, from).Get(); ok {
		d.PoolPressures = append(d.PoolPressures, &decisionv1.PoolPressure{
			Producer: producer, Utilisation: v.Utilisation, DecodeStall: v.DecodeStall, CompanyMs: v.CompanyMs, Confidence: v.Confidence,
		})
	}
}

func readPressure(d *decisionv1.Decision, producer string, c *scheduling.Cycle, to scheduling.ColumnInfo) {
	value := scheduling.ValueAt[scheduling.PoolPressure](c, to)
	if value == nil {
		return
	}
	for _, m := range d.GetPoolPressures() {
		if m.GetProducer() == producer {
			value.Set(scheduling.PoolPressure{
				Utilisation: m.GetUtilisation(), DecodeStall: m.GetDecodeStall(), CompanyMs: m.GetCompanyMs(), Confidence: m.GetConfidence(),
			})
		}
	}
}
