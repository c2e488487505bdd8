localrules:
    summarise,
    figures,
    typeset,
    summarise_partial,
    figures_partial,
    typeset_partial,


rule summarise:
    input:
        *FURTHER_RESULTS,
        # The directory: that a result was deleted shows only in its mtime.
        directory=RESULTS_DIR,
        results=RESULTS,
        script="scripts/summarise.py",
        code=library("report", "stats"),
    output:
        f"{BUILD}/requests.csv",
        f"{BUILD}/cells.csv",
        summary=f"{BUILD}/summary.json",
    log:
        f"logs/summarise/{NAME}/complete.log",
    conda:
        "../../envs/workflow.yaml"
    params:
        specs=SPECS,
        client=client_sha256(),
        asked_half_width=ASKED_HALF_WIDTH,
        options="",
    shell:
        'exec python {input.script} --campaign-json "$DRAFTBENCH_SESSION/campaign.json"'
        ' --specs-json "$DRAFTBENCH_SESSION/specs.json" --results {input.directory}'
        ' --out "$(dirname {output.summary})" --client-sha256 {params.client} {params.options} >{log} 2>&1'


rule figures:
    input:
        summary=rules.summarise.output.summary,
        script="scripts/figures.py",
        code=library("report"),
    output:
        f"{BUILD}/figures/figures.json",
    log:
        f"logs/figures/{NAME}/complete.log",
    conda:
        "../../envs/workflow.yaml"
    shell:
        'exec python {input.script} --summary "$(dirname {input.summary})" --out "$(dirname {output})"'
        " >{log} 2>&1"


rule typeset:
    input:
        summary=rules.summarise.output.summary,
        figures=rules.figures.output,
        script="scripts/typeset.py",
        code=library("report"),
        templates=report_templates(),
    output:
        "report/bench.pdf",
    log:
        run=f"logs/typeset/{NAME}/complete.log",
        tex=f"logs/typeset/{NAME}/complete.tex.log",
    conda:
        "../../envs/workflow.yaml"
    params:
        campaign=NAME,
    shell:
        'exec python {input.script} --summary "$(dirname {input.summary})"'
        ' --figures "$(dirname {input.figures})" --templates report --out {output} --log {log.tex}'
        " >{log.run} 2>&1"


# The same three for a campaign that is not finished. Results are no inputs here, or they would be measured.
use rule summarise as summarise_partial with:
    input:
        directory=RESULTS_DIR,
        script="scripts/summarise.py",
        code=library("report", "stats"),
    output:
        f"{BUILD}/partial/requests.csv",
        f"{BUILD}/partial/cells.csv",
        summary=f"{BUILD}/partial/summary.json",
    log:
        f"logs/summarise/{NAME}/partial.log",
    params:
        specs=SPECS,
        client=client_sha256(),
        asked_half_width=ASKED_HALF_WIDTH,
        options="--partial",


use rule figures as figures_partial with:
    input:
        summary=rules.summarise_partial.output.summary,
        script="scripts/figures.py",
        code=library("report"),
    output:
        f"{BUILD}/partial/figures/figures.json",
    log:
        f"logs/figures/{NAME}/partial.log",


use rule typeset as typeset_partial with:
    input:
        summary=rules.summarise_partial.output.summary,
        figures=rules.figures_partial.output,
        script="scripts/typeset.py",
        code=library("report"),
        templates=report_templates(),
    output:
        "report/partial.pdf",
    log:
        run=f"logs/typeset/{NAME}/partial.log",
        tex=f"logs/typeset/{NAME}/partial.tex.log",
