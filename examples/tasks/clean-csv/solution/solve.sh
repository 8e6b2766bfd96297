#!/bin/bash
set -euo pipefail
python3 - <<'PY'
import csv
from datetime import datetime

COUNTRIES = {"germany": "DE", "deutschland": "DE", "france": "FR", "spain": "ES", "españa": "ES"}


def iso_date(text):
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y"):
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            continue
    raise ValueError(text)


customers = {}
with open("/app/customers.csv", encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
        email = row["email"].strip().lower()
        if "@" not in email:
            continue
        country = row["country"].strip()
        clean = (
            email,
            " ".join(row["name"].split()),
            COUNTRIES.get(country.lower(), country.upper()),
            iso_date(row["signed_up"].strip()),
        )
        if email not in customers or clean[3] >= customers[email][3]:
            customers[email] = clean
with open("/app/clean.csv", "w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["email", "name", "country", "signed_up"])
    writer.writerows(customers[email] for email in sorted(customers))
PY
