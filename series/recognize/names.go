package recognize

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"loadstar/series/table"
)

// Words that occur in headings, in English, German, French, Spanish and Dutch, without accents.
// An entry of several words matches the same words in sequence.
var (
	startWords = words("start, from, begin, beginn, anfang, von, ab, debut, desde, inicio, van")
	endWords   = words("end, to, until, ende, bis, fin, hasta, tot, eind, einde")
	clockWords = words("time, uhrzeit, zeit, heure, hora, tijd, tijdstip")
	dateWords  = words("date, day, datum, tag, jour, fecha, dia, dag")

	meterWords = words(`meter id, meter, meterid, meter no, meter number, unique id, id, client, client id, mpan, mprn, nmi, esiid,
		household, household id, house, house id, home, home id, building, building id, bldg id, customer, customer id, account,
		site, site id, lclid, series, series id, item id, premise, service point, usage point,
		zahler, zahlernummer, zaehler, zaehlernummer, zahlernr, zahlpunkt, zaehlpunkt, zahlpunktbezeichnung, messpunkt, messstelle, messlokation,
		marktlokation, malo, melo, kunde, kundennummer, anlage, objekt, gebaude, standort, bezeichnung,
		compteur, numero compteur, numero de compteur, no compteur, prm, pdl, point de livraison, usager, identifiant prm, batiment,
		cups, contador, numero de contador, suministro, punto de suministro, cliente, medidor, edificio,
		ean, eancode, ean code, aansluiting, meternummer, klant, klantnummer, gebouw, locatie`)
	energyWords = words(`energy, consumption, usage, electricity, import, imported, wirkarbeit, verbrauch, energie, arbeit, strombezug, bezug, netzbezug,
		stromverbrauch, consommation, soutirage, energie active, consumo, energia, energia activa, ae, verbruik, afname, elektriciteit`)
	powerWords = words(`power, demand, load, leistung, wirkleistung, last, lastgang, puissance, puissance moyenne, puissance atteinte, courbe de charge,
		potencia, potencia media, carga, vermogen, belasting`)
	valueWords   = words("value, y, kw, kwh, wert, messwert, valeur, valor, waarde, reading, target")
	counterWords = words(`zahlerstand, zaehlerstand, stand, register, meter reading, cumulative, kumuliert, index, releve, index compteur, lectura,
		meterstand, tellerstand, cumul, acumulado, cumulatief`)
	qualityWords = words(`status, quality, quality flag, flag, validity, qualitat, ersatzwert, kennzeichen, kennung, plausibilitat, statut, etat, qualite, nature,
		estado, calidad, metodo obtencion, obtencion, kwaliteit, statuscode, state, read type, estimated`)
	exportWords = words(`export, exported, feed in, generation, production, einspeisung, ruckspeisung, rucklieferung, erzeugung, lieferung, injection, injectee,
		excedente, excedentes, vertido, generacion, energia vertida, teruglevering, injectie, opwek, invoeding, levering`)
	otherWords = words(`cost, price, tariff, preis, kosten, tarif, betrag, prix, cout, montant, precio, coste, importe, tarifa, prijs, bedrag, eur, ct, usd, gbp,
		blindarbeit, blindleistung, blind, reactive, reactiva, reactive energy, blindenergie, blindvermogen, kvar, kvarh, var, varh, kva,
		voltage, current, spannung, strom, tension, courant, intensite, tensao, corriente, spanning, stroom, cos phi, cosphi, power factor,
		co2, gas, m3, no, nr, lfd nr, row, index no, week, month, year, hour, monat, jahr, woche, periode, period, season, block,
		comment, comments, note, notes, remark, remarks, bemerkung, kommentar, beschreibung, commentaire, remarque, comentario, observaciones, opmerking`)
	sumWords  = words("sum, summe, total, gesamt, gesamtsumme, somme, suma, totaal, som, tagessumme")
	unitWords = words("unit, units, einheit, unite, unites, unidad, unidades, eenheid, eenheden, masseinheit")
)

// weatherWords are the headings of weather columns.
var weatherWords = map[string][]string{
	"temperature": words("temperature, temp c, temp, temperature c, air temperature, airtemperature, dry bulb, t2m, temperatur, lufttemperatur, aussentemperatur, temperatura, temperatuur, buitentemperatuur"),
	"wind":        words("wind, wind ms, wind speed, windspeed, wind speed ms, windgeschwindigkeit, vitesse du vent, vent, viento, velocidad del viento, windsnelheid"),
	"humidity":    words("humidity, rh pct, rh, relative humidity, feuchte, luftfeuchte, luftfeuchtigkeit, humidite, humedad, luchtvochtigheid"),
	"solar":       words("solar, solar wm2, ghi, solar radiation, global radiation, irradiance, globalstrahlung, rayonnement, rayonnement global, radiacion, irradiacion, zonnestraling, globale straling"),
	"holiday":     words("holiday, feiertag, jour ferie, festivo, feestdag"),
}

func words(list string) []string {
	var out []string
	for w := range strings.SplitSeq(list, ",") {
		out = append(out, strings.TrimSpace(w))
	}
	return out
}

// plain returns a heading in lower case, without accents, units in brackets and
// punctuation.
func plain(heading string) string {
	heading = strings.NewReplacer("ß", "ss", "ø", "o", "æ", "ae").Replace(strings.ToLower(heading))
	if i := strings.IndexAny(heading, "[("); i > 0 {
		heading = heading[:i]
	}
	var b strings.Builder
	for _, r := range norm.NFD.String(heading) {
		switch {
		case unicode.Is(unicode.Mn, r):
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		default:
			b.WriteByte(' ')
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func is(heading string, entries []string) bool {
	return slices.Contains(entries, plain(table.WithoutUnit(heading))) || slices.Contains(entries, plain(heading))
}

// has reports whether a heading contains one of the entries as separate words.
func has(heading string, entries []string) bool {
	p := " " + plain(heading) + " "
	return slices.ContainsFunc(entries, func(e string) bool { return strings.Contains(p, " "+e+" ") })
}

// isUnit reports whether a field of a line below the header is a unit or a date format.
func isUnit(field string) bool {
	f := strings.ToLower(strings.Trim(field, "[]() "))
	switch f {
	case "kwh", "wh", "mwh", "kw", "w", "mw", "kvarh", "kvar", "kva", "v", "a", "°c", "c", "%", "m/s", "w/m2", "w/m²", "hz", "-", "einheit", "unit", "datum", "uhrzeit", "eur", "€":
		return true
	}
	if table.UnitOf(f) != "" && len(f) < 16 {
		return true
	}
	form := strings.NewReplacer("d", "", "m", "", "y", "", "j", "", "t", "", "a", "", "h", "", "s", "", "i", "", ".", "", "/", "", "-", "", ":", "", " ", "").Replace(f)
	return form == "" && len(f) >= 4 && (strings.Contains(f, "hh") || strings.Contains(f, "mm"))
}
